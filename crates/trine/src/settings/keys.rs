//! The list of everything that can be set.

/// A setting.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// Its name in the file, with its section.
    pub(crate) name: &'static str,
    /// The default, in words.
    pub(crate) default: &'static str,
    pub(super) kind: SettingKind,
    pub(super) place: OptionGroup,
}

/// The form of a value in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SettingKind {
    Text,
    Path,
    Number,
    /// A number, or a text such as `24G`.
    Size,
    Switch,
    /// A text, or a list of them.
    Texts,
}

/// The options whose default a setting is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OptionGroup {
    /// No option; the program itself asks for the value.
    Program,
    /// The options of `run` and of other commands that run a model.
    Run,
    /// The options of `serve`.
    Serve,
    /// The options of commands that ask a server.
    Client,
}

impl SettingKind {
    pub(super) fn expected(self) -> &'static str {
        match self {
            SettingKind::Text | SettingKind::Path => "a text in quotes",
            SettingKind::Number => "a number",
            SettingKind::Size => "a number, or a text in quotes such as \"24G\"",
            SettingKind::Switch => "true or false",
            SettingKind::Texts => "a text in quotes, or a list of texts",
        }
    }
}

impl Key {
    /// Returns the name of the environment variable for the setting.
    pub(crate) fn variable(&self) -> String {
        match self.name {
            // This variable got its name before there were settings.
            "store" => "TRINE_HOME".to_owned(),
            name => format!("TRINE_{}", name.replace(['.', '-'], "_").to_ascii_uppercase()),
        }
    }

    fn option(&self) -> &'static str {
        self.name.rsplit('.').next().unwrap_or(self.name)
    }

    /// Returns the name of the argument as in the definition of the command line.
    pub(super) fn argument(&self) -> String {
        self.option().replace('-', "_")
    }

    /// Returns a value as it would be typed; `None` for a switch that is off.
    pub(super) fn typed(&self, text: &str) -> Option<String> {
        match self.kind {
            SettingKind::Switch => (text == "true").then(|| format!("--{}", self.option())),
            _ => Some(format!("--{}={text}", self.option())),
        }
    }
}

/// Returns whether a name is that of a section.
pub(super) fn is_section(name: &str) -> bool {
    KEYS.iter().any(|key| key.name.split_once('.').is_some_and(|(section, _)| section == name))
}

const fn key(
    name: &'static str,
    kind: SettingKind,
    place: OptionGroup,
    default: &'static str,
) -> Key {
    Key { name, kind, place, default }
}

/// All settings, in the order in which `trine config` prints them.
pub(crate) const KEYS: [Key; 46] = {
    use OptionGroup::{Client, Program, Run, Serve};
    use SettingKind::{Number, Path, Size, Switch, Text, Texts};
    [
        key("model", Text, Program, "demo"),
        key("store", Path, Program, "trine/models in the user's data folder"),
        key("device", Text, Run, "auto"),
        key("gpu-layers", Number, Run, "all that fit"),
        key("tune", Text, Run, "auto"),
        key("batch-invariant", Switch, Run, "false"),
        key("threads", Number, Run, "one for each physical core"),
        key("kv", Text, Run, "f16"),
        key("context", Number, Run, "the model's, as far as memory goes"),
        key("kv-memory", Size, Run, "what is free"),
        key("prefill", Number, Run, "as many as memory and speed make use of"),
        key("quantize", Text, Run, "off"),
        key("draft", Text, Run, "auto"),
        key("draft-device", Text, Run, "where the model runs"),
        key("sampling.temperature", Number, Run, "the model's"),
        key("sampling.top-k", Number, Run, "the model's"),
        key("sampling.top-p", Number, Run, "the model's"),
        key("sampling.min-p", Number, Run, "the model's"),
        key("sampling.seed", Number, Run, "another one each time"),
        key("sampling.max-tokens", Number, Run, "no limit"),
        key("sampling.repetition-penalty", Number, Run, "the model's"),
        key("sampling.presence-penalty", Number, Run, "the model's"),
        key("sampling.frequency-penalty", Number, Run, "the model's"),
        key("sampling.stop", Texts, Run, "none"),
        key("server.host", Text, Serve, "127.0.0.1"),
        key("server.port", Number, Serve, "8080"),
        key("server.api-key-file", Path, Serve, "none"),
        key("server.share-prefixes", Switch, Serve, "false"),
        key("server.share-priorities", Switch, Serve, "false"),
        key("server.tls-cert", Path, Serve, "none"),
        key("server.tls-key", Path, Serve, "none"),
        key("server.sequences", Number, Serve, "as many as are of use, up to 256"),
        key("server.queue", Number, Serve, "256"),
        key("server.connections", Number, Serve, "1024"),
        key("server.drain-seconds", Number, Serve, "30"),
        key("server.request-seconds", Number, Serve, "no limit"),
        key("server.memory", Size, Serve, "no limit"),
        key("server.keep-alive", Size, Serve, "forever"),
        key("server.prefix-cache-dir", Path, Serve, "none"),
        key("server.prefix-cache-size", Size, Serve, "10G"),
        key("server.origin", Texts, Serve, "pages of this machine"),
        key("server.host-name", Texts, Serve, "none"),
        key("server.body-limit", Number, Serve, "32"),
        key("server.allow-image-urls", Texts, Serve, "none"),
        key("server.url", Text, Client, "where server.host and server.port are"),
        key("server.tls-ca", Path, Client, "public authorities"),
    ]
};
