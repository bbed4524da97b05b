//! The data folder of a server: it must be writable, and no other server may run on it.

use std::path::Path;

use mainstay_store::location;
use mainstay_store::sqlite::OpenError;
use mainstay_store::sqlite::lock::holder;
use rustix::fs::{Access, access};

use super::Error;

/// Refuses a folder that cannot be written to. One that is not there yet is made later.
pub(super) fn must_be_writable(data_dir: &Path) -> Result<(), Error> {
    match access(data_dir, Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(error) => {
            let folder = data_dir.display();
            Err(Error::Engine(format!(
                "the data folder {folder} cannot be written to: {error}; make it writable for the \
                 user that the server runs as, or choose another with --data-dir"
            )))
        }
    }
}

/// Names the folder and the server that runs on it, where that is why a start failed.
pub(super) fn explained(data_dir: &Path, error: crate::Error) -> Error {
    let crate::Error::Open(location::Error::Sqlite(OpenError::InUse { path })) = &error else {
        return error.into();
    };
    if path.parent() != Some(data_dir) {
        return error.into();
    }
    let process = holder(path).map_or_else(String::new, |id| format!(" (process id {id})"));
    let url = served(data_dir).map_or_else(String::new, |url| format!(" at {url}"));
    let folder = data_dir.display();
    Error::Engine(format!(
        "the data folder {folder} is in use by another process: a server{url}{process} runs on it; \
         stop it, or choose another folder with --data-dir"
    ))
}

/// Where the server that last started on the folder listens.
fn served(data_dir: &Path) -> Option<String> {
    let kubeconfig = std::fs::read_to_string(data_dir.join("kubeconfig")).ok()?;
    let url = kubeconfig.lines().find_map(|line| line.trim().strip_prefix("server: "))?;
    Some(url.trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn a_folder_that_is_in_use_is_named_with_the_server_that_runs_on_it() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let in_use = |path: PathBuf| {
            let error = location::Error::Sqlite(OpenError::InUse { path });
            explained(dir, crate::Error::Open(error)).to_string()
        };
        let said = in_use(dir.join("objects.db"));
        assert!(said.contains(&format!("data folder {} is in use", dir.display())), "{said}");
        std::fs::write(dir.join("objects.db.lock"), "4711\n").unwrap();
        let kubeconfig = "clusters:\n- cluster:\n    server: https://127.0.0.1:7\n";
        std::fs::write(dir.join("kubeconfig"), kubeconfig).unwrap();
        let said = in_use(dir.join("objects.db"));
        assert!(said.contains("a server at https://127.0.0.1:7 (process id 4711) runs"), "{said}");
        assert!(!in_use(PathBuf::from("/elsewhere/objects.db")).contains("data folder"));
    }

    #[test]
    fn a_folder_that_is_not_there_yet_may_be_made() {
        let folder = tempfile::tempdir().unwrap();
        must_be_writable(folder.path()).unwrap();
        must_be_writable(&folder.path().join("later")).unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let said = must_be_writable(&file.join("below")).unwrap_err().to_string();
        assert!(said.contains("--data-dir"), "{said}");
    }
}
