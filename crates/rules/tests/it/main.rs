//! The engine as a whole, on SQLite and on a real PostgreSQL.

mod cases;
mod world;
