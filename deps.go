//go:build deps

package pannier
// Keeps the modules that are still to be used in go.mod while the tree is being built. Deleted at the end.

import (
_ "github.com/hashicorp/go-plugin"
_ "github.com/hashicorp/go-hclog"
_ "github.com/container-storage-interface/spec/lib/go/csi"
_ "google.golang.org/grpc"
_ "github.com/dgraph-io/badger/v4"
_ "github.com/hashicorp/raft"
_ "github.com/hashicorp/raft-wal"
_ "github.com/hashicorp/serf/serf"
_ "connectrpc.com/connect"
_ "connectrpc.com/grpcreflect"
_ "github.com/spf13/cobra"
_ "github.com/hashicorp/hcl/v2/hclsyntax"
_ "github.com/hashicorp/hcl/v2/json"
_ "github.com/hashicorp/hcl/v2/gohcl"
_ "github.com/hashicorp/hcl/v2/hclparse"
_ "github.com/zclconf/go-cty/cty"
_ "github.com/prometheus/client_golang/prometheus/promhttp"
_ "github.com/fsnotify/fsnotify"
_ "github.com/moby/sys/mountinfo"
_ "k8s.io/mount-utils"
_ "github.com/kubernetes-csi/csi-lib-utils/protosanitizer"
_ "github.com/cenkalti/backoff/v5"
_ "github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
_ "go.uber.org/goleak"
_ "github.com/rogpeppe/go-internal/testscript"
_ "pgregory.net/rapid"
_ "golang.org/x/sys/unix"
_ "golang.org/x/term"
_ "golang.org/x/sync/errgroup"
_ "github.com/dustin/go-humanize"
_ "github.com/hashicorp/go-version"
_ "google.golang.org/protobuf/proto"
)
