#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mainstay_server::laws::json_patch(data));
