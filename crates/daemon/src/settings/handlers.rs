//! `config/get` and `config/set`: shows the settings in force, and changes the settings file.
//! Parsing is in the other files of this folder.

use std::collections::VecDeque;

use belay_protocol::Bytes;
use belay_protocol::config::{ConfigGetParams, ConfigGetResult, ConfigSetParams, ConfigSetResult};
use belay_protocol::error::{ErrorKind, RpcError};

use super::{BadSetting, Key};
use crate::host::Host;
use crate::requests::{Answer, Caller, Finish};
use crate::runtime::Core;

/// Changes of the settings file. One is written at a time: the next one edits the file that the last one has written.
pub(crate) struct SettingsEdits<H: Host> {
    waiting: VecDeque<SettingsEdit<H>>,
    writing: bool,
}

/// One `config/set`.
struct SettingsEdit<H: Host> {
    key: Key,
    value: serde_json::Value,
    by: String,
    finish: Finish<H>,
}

impl<H: Host> Default for SettingsEdits<H> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), writing: false }
    }
}

impl<H: Host> Core<H> {
    /// Applies a settings file that was changed; an invalid one changes nothing and is reported.
    pub(crate) fn refresh_settings(&mut self) {
        let path = self.ctx.config.settings.path();
        if self.ctx.config.settings.is_of(self.ctx.host.settings_stamp(path)) {
            return;
        }
        let before = self.ctx.config.retention;
        match self.ctx.host.settings_file(path) {
            Ok(found) => self.ctx.config.take_over(&found),
            Err(error) => {
                let path = path.display();
                return self.ctx.notice(format!("the settings in {path} cannot be read: {error}"), "");
            }
        }
        if self.ctx.config.settings.problem().is_none() {
            tracing::info!("settings file changed and applied");
        }
        if self.ctx.config.retention != before {
            self.retention.look_soon();
        }
        if let Some(problem) = self.ctx.config.settings.problem().map(str::to_owned) {
            self.ctx.notice(problem, "the previous settings stay in force until the file is corrected");
        }
    }

    pub(crate) fn config_get(
        &mut self,
        caller: &Caller,
        params: &ConfigGetParams,
    ) -> Result<Answer, RpcError> {
        self.refresh_settings();
        let settings = &self.ctx.config.settings;
        let key = params.key.as_deref().map(known_key).transpose()?;
        let keys = key.map_or_else(|| Key::ALL.to_vec(), |key| vec![key]);
        let result = ConfigGetResult {
            path: Bytes::from(settings.path().to_owned().into_os_string()),
            items: keys.into_iter().map(|key| settings.item(key)).collect(),
            problem: settings.problem().map(str::to_owned),
        };
        Ok(caller.answer(&result))
    }

    pub(crate) fn config_set(
        &mut self,
        caller: &Caller,
        params: &ConfigSetParams,
    ) -> Result<Answer, RpcError> {
        self.only_a_person(caller, "change a setting")?;
        let (key, value) = (known_key(&params.key)?, params.value.clone());
        let by = self.actor(caller, None);
        self.await_worker(caller, move |core, finish| {
            core.settings_edits.waiting.push_back(SettingsEdit { key, value, by, finish });
            core.continue_settings_edits();
        });
        Ok(Answer::Later)
    }

    /// Begins the next change of the settings file, unless one is being written.
    fn continue_settings_edits(&mut self) {
        while !self.settings_edits.writing
            && let Some(edit) = self.settings_edits.waiting.pop_front()
        {
            self.edit_settings(edit);
        }
    }

    fn edit_settings(&mut self, edit: SettingsEdit<H>) {
        let SettingsEdit { key, value, by, finish } = edit;
        let path = self.ctx.config.settings.path().to_owned();
        let text = match self.edited_settings(&path, key, &value) {
            Ok(Some(text)) => text,
            Ok(None) => {
                return finish(self, Box::new(move |core, caller| Ok(caller.answer(&core.setting_now(key)))));
            }
            Err(error) => return finish(self, Box::new(|_, _| Err(error))),
        };
        self.settings_edits.writing = true;
        self.write_settings(path.clone(), text.into_bytes(), move |core, written| {
            core.settings_edits.writing = false;
            let make = move |core: &mut Self, caller: &Caller| {
                written.map_err(|error| cannot("written", &path, &error))?;
                tracing::info!(key = key.name(), by, "setting changed");
                Ok(caller.answer(&core.setting_now(key)))
            };
            finish(core, Box::new(make));
            core.continue_settings_edits();
        });
    }

    /// The text of the settings file with one setting changed. None: the file says so already.
    fn edited_settings(
        &self,
        path: &std::path::Path,
        key: Key,
        value: &serde_json::Value,
    ) -> Result<Option<String>, RpcError> {
        let found = self.ctx.host.settings_file(path).map_err(|error| cannot("read", path, &error))?;
        let edited = self.ctx.config.settings.edited(&found, key, value);
        let text = edited.map_err(|error| match error {
            BadSetting::Requested { message } => RpcError::invalid("value", message),
            other => RpcError::new(ErrorKind::WrongState, other.to_string())
                .hint("correct the file first; nothing was changed"),
        })?;
        let is_changed = found.text.as_deref().unwrap_or_default() != text.as_bytes();
        Ok(is_changed.then_some(text))
    }

    fn setting_now(&mut self, key: Key) -> ConfigSetResult {
        self.refresh_settings();
        let settings = &self.ctx.config.settings;
        ConfigSetResult {
            path: Bytes::from(settings.path().to_owned().into_os_string()),
            item: settings.item(key),
            counts: settings.counts(key),
        }
    }
}

fn known_key(name: &str) -> Result<Key, RpcError> {
    Key::from_name(name).ok_or_else(|| {
        let shown: String = name.chars().filter(|c| !c.is_control()).take(60).collect();
        let names: Vec<&str> = Key::ALL.iter().map(|key| key.name()).collect();
        RpcError::invalid("key", format!("there is no setting {shown:?}"))
            .hint(format!("settings: {}", names.join(", ")))
    })
}

fn cannot(action: &str, path: &std::path::Path, error: &std::io::Error) -> RpcError {
    let kind = match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => ErrorKind::DiskFull,
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
            ErrorKind::NotPermitted
        }
        _ => ErrorKind::Internal,
    };
    RpcError::new(kind, format!("{} cannot be {action}: {error}", path.display())).hint("nothing was changed")
}
