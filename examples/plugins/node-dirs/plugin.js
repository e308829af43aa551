// The parts that plugins of every kind need: the handshake, TLS, the configuration, the health, and the end
// of the process.
'use strict';

const fs = require('node:fs');
const path = require('node:path');
const grpc = require('@grpc/grpc-js');
const { PluginService, StorageService } = require('./protocol');

const FIRST_ATTEND = 60_000; // how long a new process waits for its host
const HEALTH_INTERVAL = 5_000;
const HEALTH_REPEAT = 25_000; // the host wants to hear it every 30 s
const FINISH_CALLS = 30_000; // what calls in flight have when the process ends

// log writes to the host's log: a line of JSON on standard error, in hclog's format.
function log(level, message, fields = {}) {
  const line = { '@level': level, '@message': message, '@timestamp': new Date().toISOString(), ...fields };
  fs.writeSync(2, JSON.stringify(line) + '\n');
}

// PluginError is an error with a gRPC code.
class PluginError extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

// toStatus gives an error a code: its own, or else Internal. The codes of system errors are strings.
function toStatus(err) {
  if (err instanceof PluginError) return { code: err.code, details: err.message };
  return { code: grpc.status.INTERNAL, details: err.message };
}

// life decides when the process ends: when the host asks for it, or when no host has attended it for the
// orphan timeout.
class Life {
  constructor(server) {
    this.server = server;
    this.attended = 0;
    this.stopping = false;
    this.streams = new Set(); // they would go on for ever
    this.wait(FIRST_ATTEND);
  }

  wait(ms) {
    clearTimeout(this.orphan);
    if (ms > 0) this.orphan = setTimeout(() => this.stop(`no host has attended for ${ms} ms`), ms);
  }

  attend(orphanTimeout) {
    this.attended++;
    clearTimeout(this.orphan);
    return () => {
      this.attended--;
      if (this.attended === 0 && !this.stopping) this.wait(orphanTimeout);
    };
  }

  // hold keeps a stream open until it ends. It then calls done, once.
  hold(call, done) {
    const end = () => {
      if (this.streams.delete(release)) done();
    };
    const release = () => {
      end();
      call.emit('error', { code: grpc.status.UNAVAILABLE, details: 'the plugin is stopping' });
    };
    this.streams.add(release);
    call.on('cancelled', () => {
      end();
      call.end();
    });
    if (this.stopping) release();
  }

  stop(why) {
    if (this.stopping) return;
    this.stopping = true;
    clearTimeout(this.orphan);
    log('info', 'stopping', { reason: why });
    for (const release of [...this.streams]) release();
    setTimeout(() => this.server.forceShutdown(), FINISH_CALLS).unref();
    this.server.tryShutdown(() => process.exit(0));
  }
}

// unary makes a handler from an async function. signal is aborted when the caller has given up.
function unary(f) {
  return (call, done) => {
    const abort = new AbortController();
    call.on('cancelled', () => abort.abort());
    f(call.request, abort.signal).then(
      (answer) => done(null, answer ?? {}),
      (err) => done(toStatus(err)),
    );
  };
}

// pluginService is PluginService (sdk/proto/pannier/plugin/v1).
function pluginService(info, impl, life) {
  const parse = (config) => {
    try {
      return impl.parse(JSON.parse(config.length ? config.toString() : '{}'));
    } catch (err) {
      throw new PluginError(grpc.status.INVALID_ARGUMENT, err.message);
    }
  };
  return {
    info: unary(async () => info),
    validate: unary(async (req) => void parse(req.config)),
    configure: unary(async (req) => void impl.configure(parse(req.config))),
    stop: unary(async () => void setImmediate(() => life.stop('the host asked for it'))),
    attend: (call) => {
      const release = life.attend(call.request.orphan_timeout_ms);
      let last;
      let sent = 0;
      const tell = () => {
        const message = impl.health();
        if (message === last && Date.now() - sent < HEALTH_REPEAT) return;
        [last, sent] = [message, Date.now()];
        call.write({ healthy: message === '', message });
      };
      const timer = setInterval(tell, HEALTH_INTERVAL);
      life.hold(call, () => {
        clearInterval(timer);
        release();
      });
      tell();
    },
  };
}

// credentials reads the bundle that the host made for this process: the plugin's certificate, the host's
// certificate, and the plugin's key. Only this host may make calls.
function credentials() {
  const bundle = fs.readFileSync(process.env.PANNIER_PLUGIN_TLS, 'utf8');
  const certs = bundle.match(/-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----\n/g);
  const key = bundle.match(/-----BEGIN PRIVATE KEY-----[^-]*-----END PRIVATE KEY-----\n/);
  if (certs?.length !== 2 || !key) throw new Error('the TLS bundle does not hold two certificates and a key');
  return grpc.ServerCredentials.createSsl(
    Buffer.from(certs[1]),
    [{ cert_chain: Buffer.from(certs[0]), private_key: Buffer.from(key[0]) }],
    true,
  );
}

// serve serves an implementation to the host that started the process.
function serve(info, impl) {
  if (process.env.PANNIER_PLUGIN !== 'a-pannier-carries-things-at-the-side') {
    fs.writeSync(2, `${info.name} ${info.version} is a plugin for pannier (${info.kind}) and is not run by hand.\n`);
    process.exit(1);
  }
  if (!(process.env.PLUGIN_PROTOCOL_VERSIONS ?? '').split(',').includes('1')) {
    fs.writeSync(2, `the host does not speak version 1 of the wire, only ${process.env.PLUGIN_PROTOCOL_VERSIONS}\n`);
    process.exit(1);
  }
  const server = new grpc.Server({ 'grpc.max_receive_message_length': 16 << 20 });
  const life = new Life(server);
  server.addService(PluginService, pluginService(info, impl, life));
  server.addService(StorageService, impl.service(unary, life));
  process.on('SIGTERM', () => life.stop('SIGTERM'));
  process.on('SIGINT', () => {}); // it is the host's
  process.stdout.on('error', () => {}); // its reader dies with the host

  const socket = path.join(process.env.PLUGIN_UNIX_SOCKET_DIR, 'plugin.sock');
  server.bindAsync(`unix:${socket}`, credentials(), (err) => {
    if (err) throw err;
    // The handshake: the versions of go-plugin and of the wire, the socket, and the protocol.
    process.stdout.write(`1|1|unix|${socket}|grpc|\n`);
  });
}

module.exports = { serve, log, PluginError };
