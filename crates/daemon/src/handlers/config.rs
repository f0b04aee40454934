//! `config/get set`: the settings as they count now, and changing the file that they come from.

use belay_protocol::Bytes;
use belay_protocol::config::{GetParams, GetResult, SetParams, SetResult};
use belay_protocol::error::{ErrorKind, RpcError};

use crate::answer::Caller;
use crate::core::Core;
use crate::settings::{BadSetting, Key};
use crate::world::World;

impl<W: World> Core<W> {
    /// Takes over a file that somebody has changed; one that is wrong changes nothing, and is told.
    pub(crate) fn refresh_settings(&mut self) {
        let stamp = self.world.settings_stamp(self.config.settings.path());
        if self.config.settings.is_of(stamp) {
            return;
        }
        let kept = self.config.retention;
        match self.world.settings_file(self.config.settings.path()) {
            Ok(found) => self.config.take_over(&found),
            Err(error) => {
                let path = self.config.settings.path().display();
                return self.notice(format!("the settings in {path} cannot be read: {error}"), "");
            }
        }
        if self.config.retention != kept {
            self.collect_soon();
        }
        if let Some(problem) = self.config.settings.problem() {
            self.notice(problem.to_owned(), "the settings from before count until the file is put right");
        }
    }

    pub(crate) fn config_get(&mut self, caller: &Caller, params: &GetParams) {
        self.refresh_settings();
        let settings = &self.config.settings;
        let keys = match params.key.as_deref().map(known_key).transpose() {
            Ok(key) => key.map_or_else(|| Key::ALL.to_vec(), |key| vec![key]),
            Err(error) => return self.fail(caller, error),
        };
        let result = GetResult {
            path: Bytes::from(settings.path().to_owned().into_os_string()),
            items: keys.into_iter().map(|key| settings.item(key)).collect(),
            problem: settings.problem().map(str::to_owned),
        };
        self.reply(caller, &result);
    }

    pub(crate) fn config_set(&mut self, caller: &Caller, params: &SetParams) {
        let allowed = self.only_a_person(caller, "change a setting");
        match allowed.and_then(|()| self.try_set(params)) {
            Ok(result) => self.reply(caller, &result),
            Err(error) => self.fail(caller, error),
        }
    }

    fn try_set(&mut self, params: &SetParams) -> Result<SetResult, RpcError> {
        let key = known_key(&params.key)?;
        let path = self.config.settings.path().to_owned();
        let found = self.world.settings_file(&path).map_err(|error| cannot("read", &path, &error))?;
        let text = self.config.settings.edited(&found, key, &params.value).map_err(|error| match error {
            BadSetting::Wanted { message } => RpcError::invalid("value", message),
            other => RpcError::new(ErrorKind::WrongState, other.to_string())
                .hint("put the file right first; nothing was changed"),
        })?;
        let there = found.text.as_deref().unwrap_or_default();
        if there != text.as_bytes() {
            self.world
                .write_settings(&path, text.as_bytes())
                .map_err(|error| cannot("written", &path, &error))?;
        }
        self.refresh_settings();
        Ok(SetResult {
            path: Bytes::from(path.into_os_string()),
            item: self.config.settings.item(key),
            counts: self.config.settings.counts(key),
        })
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

fn cannot(what: &str, path: &std::path::Path, error: &std::io::Error) -> RpcError {
    let kind = match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => ErrorKind::DiskFull,
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
            ErrorKind::NotPermitted
        }
        _ => ErrorKind::Internal,
    };
    RpcError::new(kind, format!("{} cannot be {what}: {error}", path.display())).hint("nothing was changed")
}
