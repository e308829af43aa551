// Command csi-local is a CSI driver that keeps volumes as files on the host's disk. docs/drivers.md describes it.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/drivers/csi-local/internal/driver"
	"github.com/pannier/pannier/drivers/csi-local/internal/serve"
	"github.com/pannier/pannier/drivers/csi-local/internal/store"
	"github.com/pannier/pannier/internal/unixsocket"
)

// version is the driver's own: it does not change with the agent's.
//
//go:embed VERSION
var version string

// config is the parsed command line.
type config struct {
	socket, nodeID, dataDir string
	verbose                 bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, os.Args[1:], os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintf(os.Stderr, "csi-local: %v\n", err)
		os.Exit(1)
	}
}

// run serves until ctx ends. It returns an error if it could not start.
func run(ctx context.Context, args []string, stderr io.Writer) (err error) {
	cfg, err := parseFlags(args, stderr)
	if err != nil {
		return err
	}
	level := hclog.Info
	if cfg.verbose {
		level = hclog.Debug
	}
	log := hclog.New(&hclog.LoggerOptions{Name: "csi-local", Level: level, Output: stderr, JSONFormat: true})

	// Report a running driver on the socket at once; waiting for the lock of the data directory may take longer.
	if err := unixsocket.Clear(ctx, cfg.socket); err != nil {
		return err
	}
	st, err := store.Open(ctx, cfg.dataDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	program := strings.TrimSpace(version)
	d := driver.New(program, cfg.nodeID, st, log)
	if err := d.Recover(ctx); err != nil {
		return err
	}
	l, err := serve.Listen(ctx, cfg.socket)
	if err != nil {
		return err
	}
	log.Info("serving", "version", program, "endpoint", cfg.socket, "node_id", cfg.nodeID, "data_dir", st.Dir())
	return serve.Run(ctx, l, log, d.Register)
}

func parseFlags(args []string, stderr io.Writer) (config, error) {
	var cfg config
	var endpoint string
	fs := flag.NewFlagSet("csi-local", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&endpoint, "endpoint", "", "unix `socket` to serve, such as unix:///run/csi/csi.sock (required)")
	fs.StringVar(&cfg.nodeID, "node-id", "", "`name` of this node (required)")
	fs.StringVar(&cfg.dataDir, "data-dir", "", "`directory` that the volumes are kept in (required)")
	fs.BoolVar(&cfg.verbose, "v", false, "log every call, with requests and responses")
	if err := fs.Parse(args); err != nil {
		return cfg, err
	}
	switch {
	case fs.NArg() > 0:
		return cfg, fmt.Errorf("unknown argument %q: the driver takes flags only, see -help", fs.Arg(0))
	case endpoint == "":
		return cfg, errors.New("-endpoint is missing, see -help")
	case cfg.nodeID == "":
		return cfg, errors.New("-node-id is missing, see -help")
	case len(cfg.nodeID) > 256:
		return cfg, errors.New("-node-id has more than 256 bytes, which CSI does not allow")
	case cfg.dataDir == "":
		return cfg, errors.New("-data-dir is missing, see -help")
	}
	var err error
	cfg.socket, err = serve.ParseEndpoint(endpoint)
	return cfg, err
}
