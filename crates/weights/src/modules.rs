//! What sentence-transformers puts after a model: `modules.json` lists the modules, and each has a
//! folder of its own beside the model's files.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::WeightsError;
use crate::error::quoted;
use crate::json::{exists, read_json};

/// The most bytes of `modules.json` and of a module's `config.json`; published ones have 600.
const BYTES_MAX: u64 = 1 << 16;
/// The most modules of a model; EmbeddingGemma has 5.
const MODULES_MAX: usize = 32;
const MODULES: &str = "modules.json";
/// The number of the first product in names of tensors.
const FIRST_DENSE: usize = 2;

/// A product with a matrix after the model's last norm.
pub(crate) struct DenseModule {
    /// The name of its matrix as llama.cpp's files have it: `dense_2.weight`, `dense_3.weight`.
    pub(crate) name: String,
    /// The file that holds the matrix, as [`DENSE_TENSOR`].
    pub(crate) path: PathBuf,
}

/// The name of a module's matrix in its file.
pub(crate) const DENSE_TENSOR: &str = "linear.weight";

/// Returns the products that follow the model in a folder; none if it lists no modules.
///
/// # Errors
/// Returns an error for a list that cannot be read, a module outside the folder or without its
/// files, one of an unknown kind beside a product, a product with a bias or an activation, and
/// products of something else than the mean of all positions.
pub(crate) fn dense_modules(directory: &Path) -> Result<Vec<DenseModule>, WeightsError> {
    let list = directory.join(MODULES);
    let Some(Value::Array(modules)) = read_json::<Value>(&list, BYTES_MAX)? else {
        return Ok(Vec::new());
    };
    let label = list.display().to_string();
    if modules.len() > MODULES_MAX {
        let problem = format!("{} modules; at most {MODULES_MAX} are read", modules.len());
        return Err(WeightsError::malformed(&label, 0, problem));
    }
    let text = |module: &Value, key: &str| -> String {
        module.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let kind_of = |module: &Value| -> String {
        text(module, "type").rsplit('.').next().unwrap_or_default().to_owned()
    };
    // Without products the list changes nothing that is read here.
    if !modules.iter().any(|module| kind_of(module) == "Dense") {
        return Ok(Vec::new());
    }
    let (mut dense, mut pooling) = (Vec::new(), None);
    for (index, module) in modules.iter().enumerate() {
        let (kind, path) = (kind_of(module), text(module, "path"));
        match &*kind {
            "Transformer" | "Normalize" => continue,
            "Dense" | "Pooling" => {}
            _ => return Err(unsupported(&list, "has a module that is not EmbeddingGemma's")),
        }
        let is_plain = |c: char| !matches!(c, '/' | '\\' | ':') && !c.is_control();
        if path.is_empty() || path.starts_with('.') || !path.chars().all(is_plain) {
            let shown = quoted(path.as_bytes());
            let problem = format!("path {shown} of module {index} is no plain name of a folder");
            return Err(WeightsError::malformed(&label, 0, problem));
        }
        let folder = directory.join(path);
        let config = folder.join("config.json");
        let Some(settings) = read_json::<Value>(&config, BYTES_MAX)? else {
            return Err(missing(&list, &config));
        };
        if kind == "Pooling" {
            pooling = Some((config, settings));
            continue;
        }
        check_dense(&config, &settings)?;
        // Files of llama.cpp count from the module after the pooling.
        let name = format!("dense_{}.weight", dense.len() + FIRST_DENSE);
        let path = folder.join("model.safetensors");
        if !exists(&path) {
            return Err(missing(&list, &path));
        }
        dense.push(DenseModule { name, path });
    }
    let Some((config, settings)) = pooling else {
        return Err(unsupported(&list, "has products and no pooling before them"));
    };
    check_mean(&config, &settings)?;
    Ok(dense)
}

/// Refuses a product that is more than a matrix.
fn check_dense(config: &Path, settings: &Value) -> Result<(), WeightsError> {
    let has_bias = settings.get("bias").is_none_or(|bias| *bias != Value::Bool(false));
    let activation = settings.get("activation_function").and_then(Value::as_str);
    if !has_bias && activation.is_some_and(|name| name.ends_with(".Identity")) {
        return Ok(());
    }
    Err(unsupported(config, "describes a module with a bias or an activation"))
}

/// Refuses another pooling than the mean over all positions, the prompt's among them.
fn check_mean(config: &Path, settings: &Value) -> Result<(), WeightsError> {
    let says = |key: &str| settings.get(key).and_then(Value::as_bool);
    let by_name = settings.get("pooling_mode").and_then(Value::as_str) == Some("mean");
    let is_mean = by_name || says("pooling_mode_mean_tokens") == Some(true);
    if is_mean && says("include_prompt") != Some(false) {
        return Ok(());
    }
    Err(unsupported(config, "asks for another pooling than the mean of all positions"))
}

/// Returns the error for a module without one of its files.
fn missing(list: &Path, file: &Path) -> WeightsError {
    WeightsError::Unsupported {
        file: list.display().to_string(),
        what: format!("lists a module whose {} is missing", file.display()),
        remedy: "Download the folders of all modules into the model's folder",
    }
}

fn unsupported(config: &Path, what: &str) -> WeightsError {
    WeightsError::Unsupported {
        file: config.display().to_string(),
        what: what.to_owned(),
        remedy: "Use the files of a published EmbeddingGemma",
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    /// Returns what is read of a folder with these modules, or what is wrong with it.
    fn read(modules: Value, dense: Value, pooling: Value) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, value: &Value| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, value.to_string()).unwrap();
        };
        write(MODULES, &modules);
        write("2_Dense/config.json", &dense);
        write("2_Dense/model.safetensors", &json!({}));
        write("4_Dense/config.json", &dense);
        write("1_Pooling/config.json", &pooling);
        let found = dense_modules(folder.path()).map_err(|error| error.to_string())?;
        Ok(found.into_iter().map(|module| module.name).collect())
    }

    #[test]
    fn only_plain_products_of_the_mean_are_taken() {
        let module = |kind: &str, path: &str| json!({"path": path, "type": format!("a.b.{kind}")});
        let modules = json!([
            module("Transformer", ""),
            module("Pooling", "1_Pooling"),
            module("Dense", "2_Dense"),
            module("Normalize", "3_Normalize"),
        ]);
        let identity = "torch.nn.modules.linear.Identity";
        let dense = json!({"bias": false, "activation_function": identity});
        let mean = json!({"pooling_mode_mean_tokens": true, "include_prompt": true});
        let good = read(modules.clone(), dense.clone(), mean.clone());
        assert_eq!(good.unwrap(), ["dense_2.weight"]);
        let by_name = json!({"pooling_mode": "mean"});
        assert!(read(modules.clone(), dense.clone(), by_name).is_ok());
        assert!(read(json!({}), dense.clone(), mean.clone()).unwrap().is_empty());
        let outside = |path: &str| json!([module("Dense", path)]);
        for (modules, dense, pooling, mark) in [
            (outside("../2_Dense"), dense.clone(), mean.clone(), "plain name"),
            (outside("/etc"), dense.clone(), mean.clone(), "plain name"),
            (outside(""), dense.clone(), mean.clone(), "plain name"),
            (json!(vec![json!({}); 33]), dense.clone(), mean.clone(), "at most 32"),
            (
                json!([module("LayerNorm", "2_Dense"), module("Dense", "2_Dense")]),
                dense.clone(),
                mean.clone(),
                "module",
            ),
            (json!([module("Dense", "2_Dense")]), dense.clone(), mean.clone(), "no pooling"),
            (outside("7_Dense"), dense.clone(), mean.clone(), "7_Dense/config.json is missing"),
            (
                outside("4_Dense"),
                dense.clone(),
                mean.clone(),
                "4_Dense/model.safetensors is missing",
            ),
            (modules.clone(), json!({"bias": false}), mean.clone(), "activation"),
            (modules.clone(), json!({"activation_function": identity}), mean, "bias"),
            (modules.clone(), dense.clone(), json!({"pooling_mode": "cls"}), "pooling"),
            (modules, dense, json!({"pooling_mode": "mean", "include_prompt": false}), "pooling"),
        ] {
            let error = read(modules, dense, pooling).unwrap_err();
            assert!(error.contains(mark), "{mark}: {error}");
        }
    }
}
