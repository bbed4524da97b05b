//! Everything the shell promises, on a simulated machine and a clock that is moved by hand.

mod acknowledge;
mod crashes;
mod discovery;
mod faults;
#[path = "../../../store/tests/it/faulty.rs"]
mod faulty;
mod races;
mod rig;
mod walks;
#[path = "../../../store/tests/it/yielding.rs"]
mod yielding;
