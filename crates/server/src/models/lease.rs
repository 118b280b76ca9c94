//! A model that stays loaded while a request uses it.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use trine_engine::{EngineError, RequestLimits};
use trine_text::{ChatTemplate, ReplyFormat, reply_format};

use super::loader::{LoadedModel, Pictures};
use super::preset::Preset;
use super::shared::{Named, Shared, bounded};
use super::table::{FAILED_STEPS, Problem, Ready};
use crate::error::{ApiError, Code, shown};
use crate::request::visitor::Visitor;

/// A model that stays loaded while this lives.
#[derive(Debug)]
pub(crate) struct Lease {
    /// The name that was asked for.
    pub(crate) name: Arc<str>,
    /// The model's own name.
    pub(crate) base: Arc<str>,
    /// The preset that the name adds to the model.
    pub(crate) preset: Arc<Preset>,
    /// The model.
    pub(crate) model: Arc<LoadedModel>,
    /// Who sent the request.
    pub(crate) visitor: Visitor,
    /// The context that the request asks for.
    pub(crate) context: Option<usize>,
    /// When the model was asked for, which may be long before it was loaded.
    pub(crate) asked: Instant,
    shared: Arc<Shared>,
}

impl Deref for Lease {
    type Target = LoadedModel;

    fn deref(&self) -> &LoadedModel {
        &self.model
    }
}

impl Lease {
    /// Returns a lease that the table has counted.
    pub(super) fn new(
        named: &Named,
        model: &Arc<LoadedModel>,
        asked: Instant,
        shared: &Arc<Shared>,
    ) -> Self {
        let Named { name, base, preset } = named.clone();
        let (model, visitor, shared) = (Arc::clone(model), Visitor::default(), Arc::clone(shared));
        Self { name, base, preset, model, visitor, context: None, asked, shared }
    }

    /// Refuses a request that the model's engine would refuse whatever its prompt is.
    ///
    /// # Errors
    /// 503 if its queue is full.
    pub(crate) fn check_room(&self) -> Result<(), EngineError> {
        self.model.service.check_room(self.visitor.client, 1)
    }

    /// Returns the chat template of conversations: the preset's, else the model's.
    pub(crate) fn template(&self) -> Option<&ChatTemplate> {
        self.preset.template.as_ref().or(self.model.template.as_ref())
    }

    /// Returns how the model writes conversations and replies with that template.
    pub(crate) fn format(&self) -> Arc<dyn ReplyFormat> {
        reply_format(&self.tokenizer, self.template())
    }

    /// Returns the limits that requests are checked against: the engine's, and the context that the
    /// name sets, or the request asks for, if that is smaller.
    pub(crate) fn limits(&self) -> RequestLimits {
        let context = bounded(self.preset.context, &self.model);
        let context = self.context.map_or(context, |own| own.min(context));
        RequestLimits { context, ..self.service.limits() }
    }

    /// Returns what the model does with pictures, of which `param` is one.
    ///
    /// # Errors
    /// 400 if it takes none.
    pub(crate) fn sees(&self, param: &str) -> Result<&Pictures, ApiError> {
        self.pictures.as_ref().ok_or_else(|| {
            let remedy = format!(
                "the model {} is loaded without a vision tower; leave the image out, or use a \
                 model that reads images, such as gemma3:4b (trine pull gemma3:4b)",
                shown(&self.name)
            );
            ApiError::unsupported(param, &remedy)
        })
    }

    /// Refuses token ids that cannot be a prompt for the model under this name.
    ///
    /// # Errors
    /// 400 if there are none, if they are more than the context, or if some are not in the model's
    /// vocabulary.
    pub(crate) fn check_prompt(&self, ids: &[u32]) -> Result<(), ApiError> {
        self.limits().check_prompt(ids).map_err(|error| self.refused(error))
    }

    /// Refuses a prompt of at least `least` tokens.
    ///
    /// # Errors
    /// 400 if they are more than the context.
    pub(crate) fn check_least(&self, least: usize) -> Result<(), ApiError> {
        self.limits().check_least(least).map_err(|error| self.refused(error))
    }

    /// Returns the error of a prompt. If the preset bounds the context, no option of the server
    /// would help.
    fn refused(&self, error: EngineError) -> ApiError {
        let is_bound = self.limits().context < self.service.limits().context;
        let (tokens, context) = match &error {
            EngineError::PromptTooLong { prompt, context } => (prompt.to_string(), *context),
            EngineError::PromptFarTooLong { least, context } => {
                (format!("at least {least}"), *context)
            }
            _ => return error.into(),
        };
        let error = ApiError::from(error);
        if !is_bound {
            return error;
        }
        if self.context == Some(context) {
            let message = format!(
                "the prompt has {tokens} tokens, more than the context of {context} that num_ctx \
                 of the request asks for; shorten it, or ask for more"
            );
            return ApiError { message, ..error };
        }
        let message = format!(
            "the prompt has {tokens} tokens, more than the context of {context} that num_ctx of \
             the preset {} allows; shorten it, or create the preset with a larger num_ctx",
            shown(&self.name)
        );
        ApiError { message, ..error }
    }

    /// Changes the model's entry in the table, if that is still this model's.
    fn change<T>(&self, change: impl FnOnce(&mut Ready) -> T) -> Option<T> {
        let mut table = self.shared.table();
        let ready = table.ready_mut(&self.base);
        ready.filter(|ready| Arc::ptr_eq(&ready.model, &self.model)).map(change)
    }

    /// Notes that the device has returned a result.
    pub(crate) fn note_success(&self) {
        let failed_steps = self.model.service.status().device_failures;
        self.change(|ready| ready.failed_steps = failed_steps);
    }

    /// Returns the error of a request that failed on the device, with its true cause. If the cause
    /// persists, the model is unloaded when its requests have ended, and the next request loads it
    /// again.
    pub(crate) async fn explain(&self, error: ApiError) -> ApiError {
        if error.code != Code::DeviceFailed {
            return error;
        }
        let stamp = self.shared.stamp(&self.base).await;
        let failed_steps = self.model.service.status().device_failures;
        let mut table = self.shared.table();
        let has_changed = table.stamps.get(&*self.base).is_some_and(|loaded| *loaded != stamp);
        let ready = table.ready_mut(&self.base);
        let Some(ready) = ready.filter(|ready| Arc::ptr_eq(&ready.model, &self.model)) else {
            return error;
        };
        if !has_changed && failed_steps.saturating_sub(ready.failed_steps) < FAILED_STEPS {
            return error;
        }
        let is_first = !ready.has_failed;
        ready.has_failed = true;
        let problem = Problem { has_changed, stamp, since: Instant::now() };
        let message = problem.message(&shown(&self.name));
        table.problems.insert(self.base.to_string(), problem);
        drop(table);
        if is_first {
            tracing::error!(
                model = %shown(&self.base),
                has_changed,
                "the model gives no more texts; the next request loads it again"
            );
        }
        match has_changed {
            true => ApiError { code: Code::ModelNotLoaded, message, ..error },
            false => error,
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.change(|ready| {
            ready.leases = ready.leases.saturating_sub(1);
            ready.used = Instant::now();
        });
        self.shared.released.notify_waiters();
    }
}
