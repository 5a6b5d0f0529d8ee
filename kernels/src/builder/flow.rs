//! Loops and branches in structured form, so that every kernel is a tree of regions.

use super::{Compare, KernelBuilder, POSITIONED, Val};
use inkwell::basic_block::BasicBlock;
use inkwell::values::{BasicValue, PhiValue};

impl<'c> KernelBuilder<'c> {
    /// `for i in (begin..end).step_by(step)` with loop-carried values: `body` gets `i` and their
    /// values, and returns the next ones. Bounds are signed and of one type; an empty range gives
    /// `init`. Loops are never unrolled behind the op's back.
    pub fn for_range(
        &self,
        range: (Val<'c>, Val<'c>),
        step: i64,
        init: &[Val<'c>],
        body: impl FnOnce(Val<'c>, &[Val<'c>]) -> Vec<Val<'c>>,
    ) -> Vec<Val<'c>> {
        let (begin, end) = range;
        let before = self.here();
        let head = self.block();
        let after = self.block();
        let enters = self.icmp(Compare::Lt, begin, end);
        self.branch(enters, head, after);

        self.builder.position_at_end(head);
        let index = self.phi(begin);
        let carried: Vec<PhiValue<'c>> = init.iter().map(|&v| self.phi(v)).collect();
        let values: Vec<Val<'c>> = carried.iter().map(|p| Val(p.as_basic_value())).collect();
        let out = body(Val(index.as_basic_value()), &values);
        debug_assert_eq!(out.len(), init.len(), "a body returns every carried value");
        let next = self.add(Val(index.as_basic_value()), self.int(begin.ty().elem, step));
        let again = self.icmp(Compare::Lt, next, end);
        let tail = self.here();
        self.branch(again, head, after);

        join(index, &[(begin, before), (next, tail)]);
        for ((phi, &first), &last) in carried.iter().zip(init).zip(&out) {
            join(*phi, &[(first, before), (last, tail)]);
        }
        self.builder.position_at_end(after);
        let merged = init.iter().zip(&out).map(|(&first, &last)| {
            let phi = self.phi(first);
            join(phi, &[(first, before), (last, tail)]);
            Val(phi.as_basic_value())
        });
        merged.collect()
    }

    /// [`for_range`](Self::for_range) from 0 by 1 without carried values.
    pub fn for_each(&self, count: Val<'c>, body: impl FnOnce(Val<'c>)) {
        let begin = self.int(count.ty().elem, 0);
        self.for_between(begin, count, body);
    }

    /// [`for_range`](Self::for_range) by 1 without carried values.
    pub fn for_between(&self, begin: Val<'c>, end: Val<'c>, body: impl FnOnce(Val<'c>)) {
        self.for_range((begin, end), 1, &[], |i, _| {
            body(i);
            Vec::new()
        });
    }

    /// Runs `body` when the uniform condition holds.
    pub fn when(&self, condition: Val<'c>, body: impl FnOnce()) {
        let then = self.block();
        let after = self.block();
        self.branch(condition, then, after);
        self.builder.position_at_end(then);
        body();
        self.builder.build_unconditional_branch(after).expect(POSITIONED);
        self.builder.position_at_end(after);
    }

    /// The values of one of two regions, by a uniform condition.
    pub fn if_else(
        &self,
        condition: Val<'c>,
        then: impl FnOnce() -> Vec<Val<'c>>,
        otherwise: impl FnOnce() -> Vec<Val<'c>>,
    ) -> Vec<Val<'c>> {
        let (first, second, after) = (self.block(), self.block(), self.block());
        self.branch(condition, first, second);
        self.builder.position_at_end(first);
        let a = then();
        let a_end = self.here();
        self.builder.build_unconditional_branch(after).expect(POSITIONED);
        self.builder.position_at_end(second);
        let b = otherwise();
        let b_end = self.here();
        self.builder.build_unconditional_branch(after).expect(POSITIONED);
        self.builder.position_at_end(after);
        let merged = a.iter().zip(&b).map(|(&x, &y)| {
            let phi = self.phi(x);
            join(phi, &[(x, a_end), (y, b_end)]);
            Val(phi.as_basic_value())
        });
        merged.collect()
    }

    fn branch(&self, condition: Val<'c>, then: BasicBlock<'c>, otherwise: BasicBlock<'c>) {
        let condition = condition.0.into_int_value();
        let branch = self.builder.build_conditional_branch(condition, then, otherwise);
        branch.expect(POSITIONED);
    }

    fn phi(&self, like: Val<'c>) -> PhiValue<'c> {
        self.builder.build_phi(like.0.get_type(), "").expect(POSITIONED)
    }

    fn block(&self) -> BasicBlock<'c> {
        self.context.append_basic_block(self.function, "")
    }

    fn here(&self) -> BasicBlock<'c> {
        self.builder.get_insert_block().expect(POSITIONED)
    }
}

fn join<'c>(phi: PhiValue<'c>, incoming: &[(Val<'c>, BasicBlock<'c>)]) {
    for (value, from) in incoming {
        let value: &dyn BasicValue<'c> = &value.0;
        phi.add_incoming(&[(value, *from)]);
    }
}
