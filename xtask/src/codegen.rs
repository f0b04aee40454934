//! `cargo xtask codegen`: types for TypeScript and Python, made from the schema by generators of others, compiled strictly with
//! a short program that uses them. Nothing of it is kept: it proves that the schema says what other languages need.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::run::{Outcome, command, root, succeed, succeeds_quietly};
use crate::test::provide;

const SCHEMA: &str = "docs/schema/client.json";
/// Written last, with what was installed: without it the folder is incomplete.
const STAMP: &str = "installed";

const NPM: &[&str] = &["json-schema-to-typescript@16.0.0", "typescript@7.0.2"];
const PYPI: &[&str] = &["datamodel-code-generator==0.89.0", "mypy==2.4.1", "pydantic==2.14.3"];

/// The generators and compilers, installed.
#[derive(Debug)]
pub(crate) struct Ready {
    dir: PathBuf,
}

/// Installs the generators and compilers below `target/`, once.
pub(crate) fn prepare() -> Outcome<Ready> {
    let dir = root().join("target/codegen");
    let wanted = [NPM, PYPI].concat().join(" ");
    if std::fs::read_to_string(dir.join(STAMP)).unwrap_or_default() == wanted {
        return Ok(Ready { dir });
    }
    println!("installing {wanted}, once …");
    provide(&[("npm", "npm"), ("python3", "python3")])?;
    if dir.exists() {
        std::fs::remove_dir_all(&dir)?;
    }
    std::fs::create_dir_all(&dir)?;
    std::fs::write(dir.join("package.json"), "{\"private\": true, \"type\": \"module\"}\n")?;
    let mut npm = command("npm", &["install", "--save-exact", "--no-audit", "--no-fund", "--loglevel=error"]);
    succeed(npm.args(NPM).current_dir(&dir).stdout(Stdio::null()))?;
    let venv = |words: &[&str]| command("python3", words);
    if !succeeds_quietly(venv(&["-m", "venv", "venv"]).current_dir(&dir)) {
        provide(&[("ensurepip", "python3-venv")])?;
        succeed(venv(&["-m", "venv", "--clear", "venv"]).current_dir(&dir))?;
    }
    let mut pip = command(dir.join("venv/bin/pip"), &["install", "--quiet", "--disable-pip-version-check"]);
    succeed(pip.args(PYPI).current_dir(&dir))?;
    std::fs::write(dir.join(STAMP), wanted)?;
    Ok(Ready { dir })
}

pub(crate) fn run() -> Outcome {
    prepare()?.check()
}

impl Ready {
    pub(crate) fn check(&self) -> Outcome {
        std::fs::copy(root().join(SCHEMA), self.dir.join("client.json"))?;
        self.typescript()?;
        self.python()
    }

    fn typescript(&self) -> Outcome {
        self.copy("usage.ts")?;
        let words = ["-i", "client.json", "-o", "client.ts", "--unreachableDefinitions"];
        self.run("node_modules/.bin/json2ts", &words)?;
        let strict = ["--strict", "--noEmit", "--target", "es2022", "--module", "nodenext", "usage.ts"];
        self.run("node_modules/.bin/tsc", &strict)
    }

    fn python(&self) -> Outcome {
        self.copy("usage.py")?;
        let words = [
            "--input=client.json",
            "--input-file-type=jsonschema",
            "--output=client.py",
            "--output-model-type=pydantic_v2.BaseModel",
            "--enum-field-as-literal=all",
            "--use-type-alias",
            "--use-annotated",
            "--target-python-version=3.11",
            "--disable-timestamp",
            "--disable-warnings",
            "--formatters=builtin",
        ];
        self.run("venv/bin/datamodel-codegen", &words)?;
        self.run("venv/bin/mypy", &["--strict", "client.py", "usage.py"])?;
        self.run("venv/bin/python", &["usage.py"])
    }

    fn copy(&self, name: &str) -> Outcome {
        std::fs::copy(root().join("xtask/codegen").join(name), self.dir.join(name))?;
        Ok(())
    }

    fn run(&self, program: &str, words: &[&str]) -> Outcome {
        let name = Path::new(program).file_name().unwrap_or_default().to_string_lossy().into_owned();
        succeed(command(self.dir.join(program), words).current_dir(&self.dir))
            .map_err(|error| format!("{name}: {error}\n  what to do: look at {}", self.dir.display()).into())
    }
}
