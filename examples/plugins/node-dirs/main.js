#!/usr/bin/env node
// A storage plugin for pannier that is not written in Go. The parts that plugins of every kind need are in
// plugin.js; docs/plugins.md has the rules.
'use strict';

const { serve } = require('./plugin');
const { Dirs } = require('./dirs');

serve({ name: 'node-dirs', version: '0.1.0', kind: 'storage.v1' }, new Dirs());
