//! `GET /v1/trine/catalog`: the models that clients may pull, with what is forecast for this
//! machine.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::Response;
use axum::http::header::{CACHE_CONTROL, HeaderValue};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::models::{Offer, OfferState};
use crate::service::app::App;
use crate::service::service_routes::json_response;

/// `GET /v1/trine/catalog?measure=true`
pub(crate) async fn catalog(
    State(app): State<Arc<App>>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response<Body>, ApiError> {
    app.models.check_library()?;
    let measure = query.iter().find(|(name, _)| name == "measure").map(|(_, value)| value.as_str());
    let measures = match measure {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(ApiError::field("measure", "measure must be true or false")),
    };
    let _one = app.catalog.lock().await;
    let catalog = app.models.manage(move |library| library.catalog(measures)).await?;
    let mut response = json_response(&json!({
        "device": catalog.device,
        "free_bytes": catalog.free_bytes,
        "models": catalog.models.iter().map(described).collect::<Value>(),
    }));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

fn described(offer: &Offer) -> Value {
    let (state, percent, name) = match &offer.state {
        OfferState::Absent => ("absent", None, None),
        OfferState::Partial(percent) => ("partial", *percent, None),
        OfferState::Here(name) => ("complete", Some(100), Some(name)),
    };
    json!({
        "name": offer.names.first(),
        "names": offer.names,
        "model": offer.model,
        "quantization": offer.quantization,
        "bytes_about": offer.bytes,
        "fits": offer.fits,
        "tokens_per_second_about": offer.tokens_per_second,
        "recommended": offer.is_recommended,
        "usual": offer.is_usual,
        "sees": offer.sees,
        "state": state,
        "percent": percent,
        "served_as": name,
    })
}
