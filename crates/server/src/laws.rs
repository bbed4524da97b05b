//! Laws about what strangers send, as functions of any bytes: each draws its case from them and
//! panics if the law is broken. The fuzz targets in `fuzz/` hunt for such bytes; the tests here
//! only see that the laws themselves are sound. Not part of the program.

mod draw;
mod patches;
mod wire;

pub use draw::Draw;
pub use patches::{json_patch, merge_patch, strategic_patch};
pub use wire::{continue_token, protobuf};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_law_holds_for_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            super::json_patch(&bytes);
            super::merge_patch(&bytes);
            super::strategic_patch(&bytes);
            super::continue_token(&bytes);
            super::protobuf(&bytes);
        }
    }
}
