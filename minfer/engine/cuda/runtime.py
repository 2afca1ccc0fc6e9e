"""A model on a device: the forward's operations as kernel launches.

Activations go from kernel to kernel in the form that the next one reads (see `activations`): f16 between the
GEMMs of a prefill, pad40 chunks before MMQ, q8 records before the decode kernels that read quantized blocks.
What the forward states as separate operations is fused where a kernel does both: biases, head norms, RoPE and
the KV store are one pass; a product that is added to the residual waits for the norm behind it, which adds
it; where the GEMM can add, gate or rotate by itself, it does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from minfer.cuda import elementwise as ew
from minfer.cuda.kernel import CompileError, ConfigRefused, LaunchRefused
from minfer.cuda.token import LAST_STEP
from minfer.engine.backend import LayerWeights, Progress, Role, Weights
from minfer.engine.cuda.activations import Activations, Storage
from minfer.engine.cuda.attention import Attention
from minfer.engine.cuda.chooser import Chooser
from minfer.engine.cuda.devices import Device
from minfer.engine.cuda.few_products import FewProducts
from minfer.engine.cuda.fused_rope import FusedRope, rotated_heads
from minfer.engine.cuda.launches import launch_for
from minfer.engine.cuda.operands import Operands
from minfer.engine.cuda.plan import FEW_TOKENS, MemoryPlan
from minfer.engine.cuda.products import Products
from minfer.engine.cuda.routes import Route
from minfer.engine.cuda.token import TokenState, TokenStep
from minfer.engine.cuda.weights import Loader, Run, Stack
from minfer.engine.errors import EngineError
from minfer.model.model import Model
from minfer.model.rope import frequencies


class CudaRuntime:
    """See `minfer.engine.backend.Runtime`. plan: what `plan_memory` decided, kept as an attribute; tell: gets
    a line where a kernel of the route cannot run and another one takes its place; loaded: the weights of
    another runtime of the same model and device, to share them."""

    chooses = True

    def __init__(
        self,
        model: Model,
        device: Device,
        route: Route,
        plan: MemoryPlan,
        progress: Progress | None = None,
        tell: Callable[[str], None] = lambda line: None,
        loaded: tuple[Weights, Run] | None = None,
    ):
        self.config = config = model.config
        self.device, self.route, self.plan = device, route, plan
        self._pdl = int(device.arch.removeprefix("sm_").rstrip("af")) >= 90
        self.loaded = loaded or Loader(device, model, plan, progress).load()
        self.weights, self._embedding = self.loaded
        self._products = Products(device, route, plan, tell)
        kv_dim = config.n_kv_heads * config.head_dim
        shape = plan.n_ctx, kv_dim
        self._keys = [device.empty(shape, np.float16) for _ in range(config.n_layers)]
        self._values = [device.empty(shape, np.float16) for _ in range(config.n_layers)]
        table = ew.rope_table(*self._angles(model))
        self._rope_table = device.empty(table.shape, np.float32)
        device.write(self._rope_table, table)
        # Token ids, their positions, and the length of the context after them.
        self._state = np.zeros(2 * plan.chunk + 1, np.int32)
        self._tokens = device.empty(self._state.shape, np.int32)
        self._positions, self._length = self._tokens[plan.chunk : 2 * plan.chunk], self._tokens[-1:]
        self._position = self._count = 0
        self._storages: dict[tuple[Role, int], Storage] = {}
        self._queries = self._storage("queries", plan.chunk, config.n_heads * config.head_dim)
        self._delta = self._storage("delta", plan.chunk, config.hidden)
        self._few_products = FewProducts(device, plan.activations["records"], self._pdl)
        self._operands = Operands(device, route, plan.activations["converted"])
        self._attention = Attention(device, config, route, plan, self._products.tensor_map)
        heads = rotated_heads(config) if route.wgmma and route.fused else None
        self._fused_rope = heads and FusedRope(device, heads, self._products, self._rope_table)
        self._pending: tuple[int, int, Activations] | None = None
        self._gated: tuple[Any, Stack] | None = None
        self._forms = self._decode_forms()
        self._token = self._token_step(tell)

    @property
    def decode(self) -> str:
        """How a token is decoded, as records keep it."""
        if self._token is None:
            return "one kernel an operation"
        route = self.route
        told = ["one kernel a token", *([] if route.token_kernel == LAST_STEP else [route.token_kernel])]
        return ", ".join([*told, *(f"{name}={value}" for name, value in route.token_changes)])

    def _token_step(self, tell: Callable[[str], None]) -> TokenStep | None:
        """The kernel for a whole token, where the route wants it. What it does not take is told, and left to
        the separate kernels, which take every model."""
        if self.route.token_kernel is None or not self._pdl:
            return None
        state = TokenState(*self._state_of_one, self._chooser.chosen)
        caches = self._rope_table, self._keys, self._values
        try:
            return TokenStep(self.config, self.weights, self.device, state, *caches, self.route.token_fields)
        except (ConfigRefused, CompileError, LaunchRefused) as error:
            tell(f"decode takes one kernel an operation; {error}")
            return None

    def _angles(self, model: Model) -> tuple[np.ndarray, int, float]:
        inv_freq, scale = frequencies(self.config, model.rope_freqs)
        return inv_freq, self.plan.n_ctx, scale

    def _decode_forms(self) -> dict[str, str]:
        """What each operand of a product of few tokens is written as: q8 if all its matrices take that."""
        layers, stacks = self.weights.layers, {}
        stacks["normed"] = [s for layer in layers for s in (layer.qkv, layer.gate_up)] + [self.weights.output]
        stacks["attended"] = [layer.o for layer in layers]
        stacks["activated"] = [layer.down for layer in layers]
        return {
            role: "q8" if all(run.quantized for stack in used for run in stack.runs) else "f32"
            for role, used in stacks.items()
        }

    # --- state ---------------------------------------------------------------------------------------------

    def buffer(self, role: Role, rows: int, columns: int) -> Activations:
        """See Runtime.buffer. Buffers of one role share their memory."""
        return Activations(self._storage(role, rows, columns), 0, rows)

    def _storage(self, role: str, rows: int, columns: int) -> Storage:
        if (role, rows) not in self._storages:
            planned = self.plan.activations[role]
            size = 4 * rows * columns if role == "logits" else planned
            try:
                memory = self.device.empty(size, np.uint8)
            except MemoryError as error:
                raise EngineError(f"{role} of {rows} tokens do not fit: {error}") from error
            self._storages[role, rows] = Storage(role, memory, rows, columns)
        return self._storages[role, rows]

    def set_tokens(self, ids: Sequence[int], position: int) -> None:
        """See Runtime.set_tokens."""
        self._settle()
        n, chunk = len(ids), self.plan.chunk
        self._state[:n] = ids
        self._state[chunk : chunk + n] = np.arange(position, position + n)
        self._state[2 * chunk] = position + n
        self.device.write(self._tokens, self._state)
        self._position, self._count = position, n
        self._pending = self._gated = None  # of a pass that was interrupted
        if self._fused_rope is not None:
            self._fused_rope.drop()
        self._attention.prepare(n, position)

    def capture(self, forward: Callable[[], None]) -> Callable[[], None]:
        """See Runtime.capture; for one token, whose kernels read all that changes from device memory."""

        def step() -> None:
            forward()
            self._settle()

        step()  # compiles and loads kernels; the tokens set before the replay overwrite what it leaves
        return self.device.capture(step)

    def _settle(self) -> None:
        if self._token is not None:
            self._token.settle()

    @property
    def _state_of_one(self) -> tuple[Any, Any, Any]:
        """Where a token's id, its position and the length of the context with it are."""
        return self._tokens[:1], self._positions[:1], self._length

    @cached_property
    def _chooser(self) -> Chooser:
        return Chooser(self.device, self.config.vocab_size, self._state_of_one, self._pdl)

    def choose(self, logits: Activations) -> None:
        """See Runtime.choose."""
        if self._step is not None:
            self._step.choose()
        else:
            self._chooser.enqueue(logits.matrix("f32")[0])

    def chosen(self, position: int) -> Callable[[], int]:
        """See Runtime.chosen."""
        return self._chooser.after(position)

    def read(self, buffer: Activations) -> np.ndarray:
        """See Runtime.read."""
        self._settle()
        if buffer.storage.form == "panels":
            return self._products.read_panels(buffer)
        return self.device.read(buffer.matrix("f32"))

    @property
    def _overlaps(self) -> bool:
        """Whether this is a decode step, whose kernels overlap at their seams (`minfer.cuda.dependent`)."""
        return self._pdl and self._count == 1

    @property
    def _step(self) -> TokenStep | None:
        """What takes this pass's operations, if it is a decode step of a model that one kernel can do."""
        return self._token if self._count == 1 else None

    def _form(self, role: str, rows: int) -> str:
        """What to write an operand of `rows` tokens as."""
        return self._forms[role] if rows <= FEW_TOKENS else self.plan.forms[role]

    # --- operations ----------------------------------------------------------------------------------------

    def embed(self, out: Activations) -> None:
        """See Runtime.embed."""
        if self._step is not None:
            self._step.begin()
        table = self._embedding
        rows = launch_for(ew.embedding, ew.EmbeddingConfig, (len(out),), table.format, table.columns)
        rows.on(self.device, table.blocks, self._tokens, out.matrix("f32"), table.rows)
        out.storage.mark("f32")

    def rmsnorm(self, out: Activations, x: Activations, *, weights: Any) -> None:
        """See Runtime.rmsnorm. Adds the product that waits for it to x first."""
        if self._step is not None:
            self._step.rmsnorm(out, x, weights)
            return
        n, width = len(x), x.storage.columns
        form = self._form("normed", n)
        hidden = x.matrix("f32")
        rest = (weights, out.matrix(form), width, self.config.rms_eps)
        if self._pending is None:
            threads = min(1024, -(-width // 128) * 32) if n == 1 else 256
            norm = launch_for(ew.rmsnorm, ew.RmsNormConfig, (n,), form, threads=threads, pdl=self._overlaps)
            norm.on(self.device, hidden, *rest)
        else:
            start, stop, delta = self._pending
            if (start, stop) != (x.start, x.stop):
                raise RuntimeError(f"a product of rows {start} to {stop} waits, the norm is of others")
            added = delta.storage.form
            norm = launch_for(ew.rmsnorm, ew.RmsNormConfig, (n,), form, residual=True, residual_type=added)
            norm.on(self.device, hidden, delta.matrix(added), hidden, *rest)
            self._pending = None
        out.storage.mark(form)

    def linear(self, out: Activations, x: Activations, matrix: Stack, add: bool = False) -> None:
        """See Runtime.linear. Biases are left to `rotate_and_store`."""
        if self._step is not None:
            self._step.linear(out, x, matrix, add)
            return
        if len(x) <= FEW_TOKENS and x.storage.form in ("f32", "q8"):
            self._few_products.multiply(out, x, matrix, add, self._overlaps)
            return
        operand = partial(self._operands.of, x)
        fuses = self._products.fuses(len(x), matrix, add)
        if fuses and add:
            self._products.add(out, operand("f16"), matrix)
        elif fuses and out.storage.role == "gate_up":
            self._gated = operand("f16"), matrix
        elif self._fused_rope is not None and self._fused_rope.takes(out, matrix):
            self._fused_rope.hold(operand("f16"), matrix)
        elif add:
            delta = Activations(self._delta, 0, len(x))
            self._products.multiply(delta, operand, matrix)
            self._pending = (out.start, out.stop, delta)
        else:
            self._products.multiply(out, operand, matrix)

    def rotate_and_store(
        self, layer: int, q: Activations, k: Activations, v: Activations, first_query: int
    ) -> None:
        """See Runtime.rotate_and_store. Adds the biases too; the queries go to a buffer of their own."""
        if self._step is not None:
            return  # its attention does
        config, weights = self.config, self.weights.layers[layer]
        whole = q.storage.parent
        n = len(k)
        if self._fused_rope is not None and self._fused_rope.launch(
            self._queries.rows_as("f16", 0, n), self._keys[layer], self._values[layer], self._position
        ):
            return
        if whole.form is not None:
            form = "f16" if n > 1 else "f32"
            self._rope_store(layer, config.n_heads, Activations(whole, k.start, k.stop), weights.qkv, form)
            return
        both = whole.part(config.n_heads * config.head_dim, whole.columns)
        self._rope_store(layer, 0, Activations(both, k.start, k.stop), weights.kv, "f16")
        if q.storage.form is not None:
            self._rope_queries(q, weights, first_query)

    def _rope_store(self, layer: int, heads: int, rows: Activations, stack: Stack, query: str) -> None:
        model, weights = self.config, self.weights.layers[layer]
        norms = () if weights.q_norm is None else (weights.q_norm, weights.k_norm)
        store = launch_for(
            ew.rope_store,
            ew.RopeStoreConfig,
            (len(rows),),
            heads,
            model.n_kv_heads,
            model.head_dim,
            model.rope.dimension_count,
            model.rope.interleaved,
            bias=stack.bias is not None,
            query=query,
            pdl=self._overlaps,
            norm=bool(norms),
            source=rows.storage.form,
        )
        store.on(
            self.device,
            rows.matrix(rows.storage.form),
            *(() if stack.bias is None else (stack.bias,)),
            *norms,
            self._positions,
            self._rope_table,
            self._queries.rows_as(query, 0, len(rows)),
            self._keys[layer],
            self._values[layer],
            *((model.rms_eps,) if norms else ()),
        )

    def _rope_queries(self, q: Activations, weights: LayerWeights, first_query: int) -> None:
        """The last token's queries alone, in f32: bias, norm and RoPE one after the other."""
        config, width = self.config, q.storage.columns
        source = q.matrix("f32")
        if weights.q.bias is not None:
            added = launch_for(ew.bias_add, ew.AddConfig, (len(q), width))
            added.on(self.device, source, weights.q.bias, width)
        if weights.q_norm is not None:
            heads = source.reshape(len(q) * config.n_heads, config.head_dim)
            normed = launch_for(ew.rmsnorm, ew.RmsNormConfig, (len(heads),))
            normed.on(self.device, heads, weights.q_norm, heads, config.head_dim, config.rms_eps)
        shape = config.n_heads, config.head_dim, config.rope.dimension_count, config.rope.interleaved
        rope = launch_for(ew.rope, ew.RopeConfig, (len(q),), *shape)
        rope.on(self.device, source, self._positions[first_query:], self._rope_table, width)

    def attention(self, layer: int, out: Activations, q: Activations, first_query: int) -> None:
        """See Runtime.attention. One query reads the context's length from device memory."""
        if self._step is not None:
            self._step.attention(layer, out, q)
            return
        form = self._form("attended", len(q))
        keys, values = self._keys[layer], self._values[layer]
        if len(q) == 1:
            queries = self._queries.rows_as("f32", 0, 1) if q.storage.parent.form else q.matrix("f32")
            self._attention.one(queries, keys, values, out.matrix(form), form, self._length, self._overlaps)
        else:
            form = "f32" if form == "q8" else form
            queries, end = self._queries.rows_as("f16", 0, len(q)), self._position + self._count
            first = self._position + first_query
            self._attention.many(queries, keys, values, out.matrix(form), form, first, end)
        out.storage.mark(form)

    def swiglu(self, out: Activations, gate_up: Activations) -> None:
        """See Runtime.swiglu. A product that waits for it is made here, and needs no gate_up."""
        if self._step is not None:
            self._step.swiglu(out, gate_up)
            return
        if self._gated is not None:
            self._products.gate(out, *self._gated)
            self._gated = None
            return
        form, source = self._form("activated", len(out)), gate_up.storage.form
        vector = 8 if (source, form) == ("f16", "pad40") else 4
        sizes = len(out), out.storage.columns
        product = launch_for(
            ew.swiglu, ew.SwigluConfig, sizes, form, source, packed=True, vector=vector, pdl=self._overlaps
        )
        product.on(self.device, gate_up.matrix(source), out.matrix(form), out.storage.columns)
        out.storage.mark(form)
