//! Products.

use super::super::graph::{Node, ProductKernel, ProductWork, allocated};
use super::{At, Emitter};
use crate::dispatch::Dispatch;
use crate::error::GpuError;
use crate::kernels::matmul::MatmulLaunch;
use crate::kernels::matvec::MatvecLaunch;
use crate::kernels::one_row::OneRowLaunch;
use crate::kernels::product::ProductLaunch;

impl Emitter<'_> {
    pub(super) fn product(
        &self,
        node: &Node,
        work: &ProductWork,
        out: &mut Vec<Dispatch>,
    ) -> Result<(), GpuError> {
        let product = work.product.visit(&mut At { emitter: self, rows: node.rows });
        match work.kernel {
            ProductKernel::OneRow => self.shaped(&OneRowLaunch(product), node, out),
            ProductKernel::Matvec => self.shaped(&MatvecLaunch(product), node, out),
            ProductKernel::Matmul => {
                let scratch = Some(self.split_scratch);
                self.pieces(&MatmulLaunch { product, scratch }, node, out)
            }
        }
    }

    /// Adds a product of many rows, in as many dispatches as it takes.
    fn pieces(
        &self,
        launch: &MatmulLaunch,
        node: &Node,
        out: &mut Vec<Dispatch>,
    ) -> Result<(), GpuError> {
        let width = launch.product.width;
        let rows = launch.rows_at_once(self.compiler.capabilities(), allocated(width));
        if rows == width {
            return self.shaped(launch, node, out);
        }
        (0..width)
            .step_by(rows)
            .try_for_each(|first| self.shaped(&launch.piece(first, rows), node, out))
    }

    /// Adds a product in the shape that was chosen for it, or shows it to the survey.
    fn shaped<L: ProductLaunch>(
        &self,
        launch: &L,
        node: &Node,
        out: &mut Vec<Dispatch>,
    ) -> Result<(), GpuError> {
        if let Some(survey) = self.survey {
            return survey.borrow_mut().see(launch);
        }
        let shape = self.selection.shape(launch);
        out.push(launch.dispatch(self.compiler, shape, &node.label, node.step)?);
        Ok(())
    }
}
