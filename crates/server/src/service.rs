//! What the server is beside its dialects: who may ask, which path is answered, what requests
//! share, and what is told of all of it.

pub(crate) mod answer;
pub(crate) mod app;
pub(crate) mod guard;
pub(crate) mod hosts;
pub(crate) mod keys;
pub(crate) mod lanes;
pub(crate) mod lifecycle;
pub(crate) mod live;
pub(crate) mod metrics;
pub(crate) mod offers;
pub(crate) mod openapi;
pub(crate) mod options;
pub(crate) mod page;
pub(crate) mod rates;
pub(crate) mod rooms;
pub(crate) mod routes;
pub(crate) mod sensors;
pub(crate) mod service_routes;
pub(crate) mod workers;
