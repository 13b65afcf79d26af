// `make bench-vm`: the cost of the filter's own code in V8, Envoy's engine too, without Envoy.
// Repeatable where `make bench` is noisy: use it to compare two builds of the filter.
//   node tests/full/bench/vm.mjs FILTER.wasm...
// Nanoseconds per request, the minimum of ten interleaved rounds. About 400 of them belong to this host.
import fs from 'node:fs';
import process from 'node:process';

const REQUESTS = 60_000;
const ROUNDS = 10;
/// Requests that share a callout.
const BATCH = 22;
const OK = 0, NOT_FOUND = 1, PLUGIN_CONFIGURATION = 7;
const CONFIGURATION = { version: 2, sidecar: { cluster: 'sluicegate', timeout: '2s' } };
const RULE = {
  name: 'per-key',
  checks: [{ limit: 'per-key', key: [{ header: 'x-api-key' }] }],
  when_unavailable: 'deny',
  reply: { headers: 'both' },
};
/// As a sidecar pushes them.
const RULES = [{ format: 1, digest: '0123456789ab', instance: 1, lines: 2 }, { set: 'default' }, { rule: RULE }]
  .map((line) => `${JSON.stringify(line)}\n`).join('');
const HEADERS = {
  ':authority': '127.0.0.1:10000', ':path': '/', ':method': 'GET', ':scheme': 'http', 'x-api-key': 'key-1',
  'x-forwarded-for': '127.0.0.1', 'x-forwarded-proto': 'http', 'x-envoy-internal': 'true',
  'x-request-id': '0e3b2cc6-3c1b-4d3e-a5d5-2c8c2c1c9c3a', 'x-envoy-expected-rq-timeout-ms': '15000',
};

/// Headers as the proxy-wasm ABI passes them.
function pairs(headers) {
  const list = Object.entries(headers).map((pair) => pair.map((text) => Buffer.from(`${text}\0`)));
  const sizes = Buffer.alloc(4 + 8 * list.length);
  sizes.writeUInt32LE(list.length);
  list.flat().forEach((text, n) => sizes.writeUInt32LE(text.length - 1, 4 + 4 * n));
  return Buffer.concat([sizes, ...list.flat()]);
}

/// One module and the part of Envoy that it needs.
class Host {
  constructor(file) {
    this.name = file;
    this.replies = this.resumed = this.token = this.answered = 0;
    this.next = 2;
    this.now = 0n;
    const module = new WebAssembly.Module(fs.readFileSync(file));
    const headers = pairs(HEADERS), configuration = Buffer.from(JSON.stringify(CONFIGURATION));
    const known = {
      proxy_get_buffer_bytes: (kind, _, __, ...to) => this.give(kind === PLUGIN_CONFIGURATION ? configuration : this.answer, ...to),
      proxy_get_header_map_pairs: (_, ...to) => this.give(headers, ...to),
      proxy_get_header_map_value: (_, __, ___, ...to) => this.give(Buffer.from('200'), ...to),
      proxy_get_property: () => NOT_FOUND,
      proxy_http_call: (...all) => this.number(all[9], this.called(++this.token, all)),
      proxy_send_local_response: () => (this.replies++, OK),
      proxy_continue_stream: () => (this.resumed++, OK),
      clock_time_get: (_, __, to) => (new DataView(this.memory.buffer).setBigUint64(to, this.now, true), OK),
    };
    const imports = {};
    for (const { module: from, name } of WebAssembly.Module.imports(module)) {
      (imports[from] ??= {})[name] = known[name] ?? (() => OK);
    }
    const { exports } = new WebAssembly.Instance(module, imports);
    this.vm = exports;
    this.memory = exports.memory;
    exports._initialize?.();
    exports.proxy_on_context_create(1, 0);
    exports.proxy_on_vm_start(1, 0);
    if (!exports.proxy_on_configure(1, configuration.length)) throw new Error(`${file} refuses the configuration`);
    // The first asks for rules, and the second compiles them.
    for (let second = 1n; second <= 2n; second++) {
      this.now = second * 1_000_000_000n;
      exports.proxy_on_tick(1);
      if (second === 1n) this.answerWith(this.rules, RULES);
    }
    this.answered = this.token;
  }

  /// Remembers which callout asks for rules.
  called(token, [, , headers, size]) {
    if (Buffer.from(this.memory.buffer, headers, size).includes('/v1/rules')) this.rules = token;
    return token;
  }

  answerWith(token, text) {
    this.answer = Buffer.from(text);
    this.vm.proxy_on_http_call_response(1, token, 3, this.answer.length, 0);
  }

  number(to, value) {
    new DataView(this.memory.buffer).setUint32(to, value, true);
    return OK;
  }

  give(bytes, data, size) {
    const at = (this.vm.malloc ?? this.vm.proxy_on_memory_allocate)(bytes.length);
    new Uint8Array(this.memory.buffer).set(bytes, at);
    this.number(data, at);
    return this.number(size, bytes.length);
  }

  request() {
    const id = this.next++;
    this.vm.proxy_on_context_create(id, 1);
    this.vm.proxy_on_request_headers(id, 10, 1);
    return id;
  }

  end(id) {
    this.vm.proxy_on_response_headers(id, 9, 0);
    this.vm.proxy_on_delete(id);
  }

  /// Has the root send its callout and answers it.
  respond(outcome, count) {
    this.vm.proxy_on_queue_ready(1, 0);
    if (this.token === this.answered) throw new Error(`${this.name} made no callout`);
    const hold = outcome === 'denied' ? ',"hold_ms":60000' : '';
    const verdict = `{"outcome":"${outcome}","check":0,"limit":"per-key","quota":1,"window_ms":10000,"remaining":0,"reset_ms":9000,"retry_after_ms":9000${hold}}`;
    this.answered = this.token;
    this.answerWith(this.token, `{"epoch":1,"verdicts":[${Array(count).fill(verdict).join(',')}]}`);
  }
}

const denials = {
  name: 'denied from the cache',
  prepare(host) {
    const id = host.request();
    host.respond('denied', 1);
    host.end(id);
  },
  run(host) {
    const before = host.replies;
    for (let n = 0; n < REQUESTS; n++) host.end(host.request());
    if (host.replies - before !== REQUESTS) throw new Error(`${host.name} denied ${host.replies - before}`);
  },
};
const admissions = {
  name: `admitted, ${BATCH} in a callout`,
  prepare() {},
  run(host) {
    const before = host.resumed;
    for (let n = 0; n < REQUESTS; n += BATCH) {
      const ids = Array.from({ length: BATCH }, () => host.request());
      host.respond('admitted', BATCH);
      ids.forEach((id) => host.end(id));
    }
    if (host.resumed - before < REQUESTS) throw new Error(`${host.name} admitted ${host.resumed - before}`);
  },
};

const files = process.argv.slice(2);
if (files.length === 0) throw new Error('usage: node tests/full/bench/vm.mjs FILTER.wasm...');
for (const what of [denials, admissions]) {
  const hosts = files.map((file) => new Host(file));
  hosts.forEach((host) => what.prepare(host));
  const least = new Map(hosts.map((host) => [host, Infinity]));
  for (let round = 0; round < ROUNDS; round++) {
    for (const host of hosts) {
      const started = process.hrtime.bigint();
      what.run(host);
      const each = Number(process.hrtime.bigint() - started) / REQUESTS;
      least.set(host, Math.min(least.get(host), each));
    }
  }
  for (const [host, ns] of least) {
    console.log(`${what.name.padEnd(28)} ${ns.toFixed(0).padStart(6)} ns  ${host.name}`);
  }
}
