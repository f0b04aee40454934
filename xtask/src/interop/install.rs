//! Getting the agents: each in a folder of its own below `target/`, by npm, once. Nothing of the machine is changed, but
//! for npm itself where it is missing and may be had.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use super::agents::{Agent, NODE, Package};
use crate::run::{Outcome, command, output, root, succeed, succeeds_quietly};
use crate::test::provide;

/// Written last, with what was installed: without it the folder is half of something.
const STAMP: &str = "installed";

/// Where the agents are.
#[derive(Debug)]
pub(crate) struct Shelf {
    dir: PathBuf,
}

impl Shelf {
    /// Everything these agents need, installed if it is not.
    pub(crate) fn fill(agents: &[Agent]) -> Outcome<Self> {
        let shelf = Self { dir: root().join("target/interop") };
        let packages = std::iter::once(NODE).chain(agents.iter().map(|agent| agent.package()));
        let missing: Vec<Package> = packages.filter(|package| !shelf.has(*package)).collect();
        if !missing.is_empty() {
            provide(&[("npm", "npm")])?;
        }
        for package in missing {
            let began = Instant::now();
            println!("installing {}, once …", spec(package));
            shelf.install(package).map_err(|error| format!("cannot install {}: {error}", spec(package)))?;
            println!("installed {} ({:.1} s)", spec(package), began.elapsed().as_secs_f64());
        }
        Ok(shelf)
    }

    pub(crate) fn program(&self, agent: Agent) -> PathBuf {
        self.bin(agent.package()).join(agent.package().program)
    }

    /// A PATH with our node, and apart from it only what every machine has.
    pub(crate) fn path(&self) -> OsString {
        let mut path = self.bin(NODE).into_os_string();
        path.push(":/usr/local/bin:/usr/bin:/bin");
        path
    }

    fn folder(&self, package: Package) -> PathBuf {
        self.dir.join(package.program)
    }

    fn bin(&self, package: Package) -> PathBuf {
        self.folder(package).join("node_modules/.bin")
    }

    fn has(&self, package: Package) -> bool {
        let stamp = std::fs::read_to_string(self.folder(package).join(STAMP)).unwrap_or_default();
        stamp == spec(package) && self.bin(package).join(package.program).exists()
    }

    fn install(&self, package: Package) -> Outcome {
        let folder = self.folder(package);
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("package.json"), "{\"private\": true}\n")?;
        let quiet = ["--no-audit", "--no-fund", "--loglevel=error"];
        succeed(self.npm(&folder, &["install", "--save-exact"]).args(quiet).arg(spec(package)))?;
        // Some npm hold back what packages do when they are installed, until it is approved; others do not know the word.
        if succeeds_quietly(&mut self.npm(&folder, &["install-scripts", "approve", "--all"])) {
            succeed(self.npm(&folder, &["rebuild"]).args(quiet))?;
        }
        self.check_version(package)?;
        Ok(std::fs::write(folder.join(STAMP), spec(package))?)
    }

    fn npm(&self, folder: &Path, words: &[&str]) -> Command {
        let mut npm = command("npm", words);
        let mut path = self.bin(NODE).into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        npm.arg("--prefix").arg(folder).current_dir(folder).env("PATH", path).stdout(Stdio::null());
        npm
    }

    fn check_version(&self, package: Package) -> Outcome {
        let home = self.dir.join("home");
        std::fs::create_dir_all(&home)?;
        let mut ask = command(self.bin(package).join(package.program), &["--version"]);
        let said = output(ask.current_dir(&home).env("HOME", &home).env("PATH", self.path()))?;
        let version = said.split_whitespace().next().unwrap_or_default().trim_start_matches('v');
        let is_it = version == package.version || version.starts_with(&format!("{}.", package.version));
        if is_it { Ok(()) } else { Err(format!("it says that it is {:?}", said.trim()).into()) }
    }
}

fn spec(package: Package) -> String {
    format!("{}@{}", package.name, package.version)
}
