// The storage, as in ../dirs: volumes are directories below the driver's endpoint, and a workload gets one by
// a bind mount. All lasting state is in the file system.
'use strict';

const fs = require('node:fs/promises');
const os = require('node:os');
const path = require('node:path');
const { execFile } = require('node:child_process');
const { promisify } = require('node:util');
const { status } = require('@grpc/grpc-js');
const { PluginError } = require('./plugin');

const run = promisify(execFile);

class Dirs {
  constructor() {
    this.mode = 0o755;
    this.turn = Promise.resolve();
  }

  // inTurn runs the calls that change mounts one after the other, since each looks at the mounts first.
  inTurn(call) {
    const result = this.turn.then(call);
    this.turn = result.catch(() => {});
    return result;
  }

  // parse refuses unknown keys.
  parse(config) {
    if (config === null || typeof config !== 'object' || Array.isArray(config)) {
      throw new Error('the configuration is not a JSON object');
    }
    const { mode = '0755', ...rest } = config;
    const unknown = Object.keys(rest);
    if (unknown.length > 0) throw new Error(`there is no key ${unknown.join(', ')}`);
    if (typeof mode !== 'string' || !/^0?[0-7]{3}$/.test(mode)) throw new Error(`mode: ${JSON.stringify(mode)} is not an octal mode such as 0755`);
    return { mode: parseInt(mode, 8) };
  }

  configure({ mode }) {
    this.mode = mode;
  }

  // health is the reason why the process is unhealthy. A driver's health is in its fingerprint.
  health() {
    return '';
  }

  // service implements StorageService. Missing methods answer UNIMPLEMENTED.
  service(unary, life) {
    return {
      fingerprint: (call) => this.fingerprint(call, life),
      validateVolume: unary(async (req) => {
        await existing(req.driver, req.volume);
        req.capabilities.forEach(check);
      }),
      publish: unary((req, signal) => this.inTurn(() => this.publish(req, signal))),
      unpublish: unary((req, signal) => this.inTurn(() => this.unpublish(req, signal))),
      create: unary((req) => this.create(req)),
      delete: unary(async (req) => fs.rm(folder(req.driver, req.volume.external_id), { recursive: true, force: true })),
    };
  }

  async look(driver) {
    const answer = {
      healthy: true,
      provider: 'node-dirs',
      version: '0.1.0',
      controller: { create_delete: true },
      node: { node_id: os.hostname() },
    };
    try {
      await fs.readdir(root(driver));
    } catch (err) {
      Object.assign(answer, { healthy: false, message: err.message });
    }
    return answer;
  }

  // fingerprint reports each change until its caller ends it.
  fingerprint(call, life) {
    const { driver, interval_ms: interval } = call.request;
    let last;
    let over = false;
    const tell = async () => {
      const now = await this.look(driver);
      if (over || JSON.stringify(now) === last) return;
      last = JSON.stringify(now);
      call.write(now);
    };
    const timer = setInterval(tell, interval || 30_000);
    life.hold(call, () => {
      over = true;
      clearInterval(timer);
    });
    tell();
  }

  async publish(req, signal) {
    const source = await existing(req.driver, req.volume);
    check(req.volume.capability);
    const target = req.target_path;
    await fs.mkdir(target, { recursive: true, mode: 0o750 });
    if (!(await same(source, target))) await run('mount', ['--bind', source, target], { signal });
    if (req.read_only) await run('mount', ['-o', 'remount,bind,ro', target], { signal });
  }

  async unpublish(req, signal) {
    const target = req.target_path;
    while (await mounted(target)) await run('umount', [target], { signal });
    await fs.rmdir(target).catch((err) => {
      if (err.code !== 'ENOENT') throw err;
    });
  }

  async create(req) {
    if (req.snapshot_id || req.clone_id) throw new PluginError(status.INVALID_ARGUMENT, 'a folder is made empty: no snapshot and no clone');
    req.capabilities.forEach(check);
    const dir = folder(req.driver, req.name);
    await fs.mkdir(dir).catch((err) => {
      if (err.code !== 'EEXIST') throw err;
    });
    await fs.chmod(dir, this.mode); // whatever the umask is
    return { external_id: req.name };
  }
}

function root(driver) {
  return driver.endpoint.replace(/^unix:\/\//, '');
}

function folder(driver, id) {
  if (!id || id === '.' || id === '..' || id.includes('/')) {
    throw new PluginError(status.INVALID_ARGUMENT, `${JSON.stringify(id)} is not the name of a folder`);
  }
  return path.join(root(driver), id);
}

async function existing(driver, volume) {
  const dir = folder(driver, volume?.external_id);
  const info = await fs.lstat(dir).catch((err) => {
    if (err.code === 'ENOENT') throw new PluginError(status.NOT_FOUND, `there is no folder ${dir}`);
    throw err;
  });
  if (!info.isDirectory()) throw new PluginError(status.FAILED_PRECONDITION, `${dir} is not a folder`);
  return dir;
}

function check(capability) {
  if (capability?.attachment_mode === 'ATTACHMENT_MODE_BLOCK_DEVICE') {
    throw new PluginError(status.FAILED_PRECONDITION, 'a folder cannot be attached as a block device: ask for file-system');
  }
  if (capability?.access_mode?.startsWith('ACCESS_MODE_MULTI_NODE')) {
    throw new PluginError(status.FAILED_PRECONDITION, 'a folder is on one node');
  }
}

async function same(a, b) {
  const [first, second] = await Promise.all([fs.stat(a), fs.stat(b)]);
  return first.dev === second.dev && first.ino === second.ino;
}

// mounted searches the kernel's mount table, in which some characters are octal escapes
// (proc_pid_mountinfo(5)).
async function mounted(target) {
  const table = await fs.readFile('/proc/self/mountinfo', 'utf8');
  const point = (line) => line.split(' ')[4]?.replace(/\\([0-7]{3})/g, (_, code) => String.fromCharCode(parseInt(code, 8)));
  return table.split('\n').some((line) => point(line) === target);
}

module.exports = { Dirs };
