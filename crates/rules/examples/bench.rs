//! Measures the engine: `bench [ADDRESS] [filled] [huge] [only]`; without an address, SQLite in a
//! temporary folder and a PostgreSQL of its own, one after the other.

use mainstay_catalog::Catalog;
use mainstay_catalog::private_postgres::PrivatePostgres;
use mainstay_rules::bench::{Options, run};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let which = args.next().unwrap_or_else(|| "both".to_owned());
    let number = |text: Option<String>| text.and_then(|text| text.parse().ok()).unwrap_or(0);
    let (filled, huge) = (number(args.next()), number(args.next()));
    let options = Options { filled, huge, only: args.next(), ..Options::default() };
    let tell = |catalog: &Catalog| {
        run(catalog, &options, &mut |row| {
            println!("{}", serde_json::to_string(row).unwrap_or_default())
        })
    };
    if which.contains('/') {
        tell(&Catalog::open_blocking(&which)?)?;
        return Ok(());
    }
    if which != "postgres" {
        let folder = tempfile::tempdir()?;
        tell(&Catalog::open_blocking(&folder.path().join("catalog.db").display().to_string())?)?;
    }
    if which != "sqlite" {
        let server = PrivatePostgres::start(&["shared_buffers=1GB", "max_wal_size=4GB"])?;
        server.make_schema("bench")?;
        tell(&Catalog::open_blocking(&server.url("bench"))?)?;
    }
    Ok(())
}
