// The services, from the same protobuf files as the host's. They are embedded as text, because the built
// plugin must be a single file: the host runs a copy of it.
'use strict';

const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');
const protobuf = require('protobufjs');

const files = [
  require('../../../sdk/proto/pannier/plugin/v1/plugin.proto'),
  require('../../../sdk/proto/pannier/plugin/storage/v1/storage.proto'),
];

const root = new protobuf.Root();
root.addJSON(protobuf.common.get('google/protobuf/timestamp.proto').nested);
for (const file of files) {
  protobuf.parse(file, root, { keepCase: true });
}
const definition = loader.fromJSON(root.toJSON(), { keepCase: true, longs: Number, enums: String, defaults: true });
const { plugin } = grpc.loadPackageDefinition(definition).pannier;

module.exports = {
  PluginService: plugin.v1.PluginService.service,
  StorageService: plugin.storage.v1.StorageService.service,
};
