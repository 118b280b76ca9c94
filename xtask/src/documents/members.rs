//! The members of the sources' types: fields, variants, functions, constants and associated types.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use crate::sources::Source;

/// The members of each type and trait, by its name. Types of one name share an entry.
#[derive(Default)]
pub(super) struct Members {
    names: BTreeMap<String, BTreeSet<String>>,
}

impl Members {
    pub(super) fn of(sources: &[Source]) -> Self {
        let mut members = Self::default();
        sources.iter().for_each(|source| members.visit_file(&source.syntax));
        members
    }

    /// Returns whether the sources define the type and it lacks the member.
    pub(super) fn lack(&self, name: &str, member: &str) -> bool {
        self.names.get(name).is_some_and(|members| !members.contains(member))
    }

    fn add(&mut self, name: &syn::Ident, members: impl Iterator<Item = String>) {
        self.names.entry(name.to_string()).or_default().extend(members);
    }
}

impl<'ast> Visit<'ast> for Members {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        let fields = item.fields.iter().filter_map(|field| field.ident.as_ref());
        self.add(&item.ident, fields.map(ToString::to_string));
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.add(&item.ident, item.variants.iter().map(|variant| variant.ident.to_string()));
        visit::visit_item_enum(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        let name = |item: &syn::TraitItem| match item {
            syn::TraitItem::Fn(item) => Some(item.sig.ident.to_string()),
            syn::TraitItem::Const(item) => Some(item.ident.to_string()),
            syn::TraitItem::Type(item) => Some(item.ident.to_string()),
            _ => None,
        };
        self.add(&item.ident, item.items.iter().filter_map(name));
        visit::visit_item_trait(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let name = |item: &syn::ImplItem| match item {
            syn::ImplItem::Fn(item) => Some(item.sig.ident.to_string()),
            syn::ImplItem::Const(item) => Some(item.ident.to_string()),
            syn::ImplItem::Type(item) => Some(item.ident.to_string()),
            _ => None,
        };
        if let syn::Type::Path(path) = &*item.self_ty
            && let Some(last) = path.path.segments.last()
        {
            self.add(&last.ident, item.items.iter().filter_map(name));
        }
        visit::visit_item_impl(self, item);
    }
}
