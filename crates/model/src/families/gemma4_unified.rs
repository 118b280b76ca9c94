//! How Gemma 4's 12B makes rows of pictures, which needs no layers, as the reference implementation
//! in transformers computes it.
//!
//! ```text
//! h = norm(norm(W norm(patch) + b) + X[column] + Y[row])
//! soft = projection * rms(h)
//! ```
//!
//! Norms subtract the mean and have a bias; that of the projector has no weights. A patch is a
//! soft token. A row's token is the patch's place ([`TowerConfig::places`]).

use trine_weights::DType;

use crate::checkpoint::tower_config::TowerConfig;
use crate::checkpoint::tower_names as names;
use crate::families::builder::Builder;
use crate::gemma4_vision::projected;
use crate::plan::Plan;

/// Added to variances: the norms have the default of torch, whatever the configuration says.
const EPSILON: f32 = 1e-5;

/// Builds the Plan. `dtype_of` returns how the tensor of a name is stored.
///
/// Its input is (patches, rows x columns x colours), from 0 to 1. Its outputs are (patches, hidden
/// size of the text model), and with `states` the rows before the projector, (patches, hidden).
pub(crate) fn plan(config: &TowerConfig, states: bool, dtype_of: &dyn Fn(&str) -> DType) -> Plan {
    let mut p = Builder::new(dtype_of);
    let [values_norm, product_norm, places_norm] = names::PATCH_NORMS;
    let values = p.patches(config.patch_values());
    let normed = p.layer_norm("patch_norm_1", values, values_norm, EPSILON);
    let product = p.matmul("product", normed, names::PATCHES, config.hidden);
    p.bias(product, names::PATCHES_BIAS);
    let h = p.layer_norm("patch_norm_2", product, product_norm, EPSILON);
    let places = p.places("places", names::PLACES, config.side(), config.hidden);
    p.add(places, h);
    let h = p.layer_norm("patch_norm_3", h, places_norm, EPSILON);
    projected(p, config, h, states)
}
