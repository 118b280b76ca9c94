//! Turns generic kernels into one function table per instruction set.

/// Declares `Table`, a struct of function pointers, and fills one per instruction set from the
/// generic functions of the same names in the module `$source`, whose first argument is the token.
///
/// The only condition for calling an entry is that the processor has the instruction set, which
/// `Table::for_isa` checks.
macro_rules! dispatch_table {
    (
        $source:ident;
        $( fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $(-> $result:ty)?; )*
    ) => {
        /// The kernels of one instruction set.
        pub(crate) struct Table {
            $( pub(crate) $name: unsafe fn($($kind),*) $(-> $result)?, )*
        }

        impl Table {
            /// Returns the kernels for `isa`, or `None` if the processor lacks it.
            pub(crate) fn for_isa(isa: $crate::isa::Isa) -> Option<&'static Table> {
                use $crate::isa::Isa;
                if !isa.is_available() {
                    return None;
                }
                match isa {
                    Isa::Scalar => Some(&portable_table::TABLE),
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx2 | Isa::AvxVnni => Some(&avx2_table::TABLE),
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512Vnni => Some(&avx512_table::TABLE),
                    #[cfg(target_arch = "aarch64")]
                    Isa::Neon | Isa::NeonDot => Some(&neon_table::TABLE),
                    #[allow(unreachable_patterns, reason = "other processors' sets")]
                    _ => None,
                }
            }
        }

        mod portable_table {
            use super::*;
            $( fn $name($($argument: $kind),*) $(-> $result)? {
                $source::$name($crate::vector::lanes::Portable, $($argument),*)
            } )*
            pub(super) static TABLE: Table = Table { $($name),* };
        }

        #[cfg(target_arch = "x86_64")]
        mod avx2_table {
            use super::*;
            $( #[target_feature(enable = "avx2,fma,f16c")]
            fn $name($($argument: $kind),*) $(-> $result)? {
                // SAFETY: this function's features are the token's.
                let token = unsafe { $crate::vector::x86::Avx2::new() };
                $source::$name(token, $($argument),*)
            } )*
            pub(super) static TABLE: Table = Table { $($name),* };
        }

        #[cfg(target_arch = "x86_64")]
        mod avx512_table {
            use super::*;
            $( #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            fn $name($($argument: $kind),*) $(-> $result)? {
                // SAFETY: this function's features are the token's.
                let token = unsafe { $crate::vector::x86::Avx512::new() };
                $source::$name(token, $($argument),*)
            } )*
            pub(super) static TABLE: Table = Table { $($name),* };
        }

        #[cfg(target_arch = "aarch64")]
        mod neon_table {
            use super::*;
            $( #[target_feature(enable = "neon")]
            fn $name($($argument: $kind),*) $(-> $result)? {
                // SAFETY: this function's features are the token's.
                let token = unsafe { $crate::vector::neon::Neon::new() };
                $source::$name(token, $($argument),*)
            } )*
            pub(super) static TABLE: Table = Table { $($name),* };
        }
    };
}

pub(crate) use dispatch_table;
