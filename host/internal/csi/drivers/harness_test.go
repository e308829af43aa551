package drivers

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/check"
)

// The test program is also the driver that the registry runs, and a host that a test kills, depending on its first
// argument.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "a-csi-driver":
			driverMain(os.Args[2:])
		case "a-host":
			hostMain(os.Args[2], os.Args[3])
		}
	}
	check.SideBySide(8) // they mostly wait for processes
	goleak.VerifyTestMain(m)
}

// driverMain is a CSI driver with an identity and a node service, or a controller service instead.
func driverMain(args []string) {
	flags := flag.NewFlagSet("driver", flag.ExitOnError)
	endpoint := flags.String("endpoint", os.Getenv("CSI_ENDPOINT"), "")
	var d csiDriver
	flags.StringVar(&d.version, "version", "1.0", "")
	flags.BoolVar(&d.notReady, "not-ready", false, "")
	flags.BoolVar(&d.controller, "controller", false, "")
	flags.StringVar(&d.name, "name", "", "")
	eat := flags.Int("eat", 0, "MiB of memory")
	fuse := flags.Bool("fuse", false, "hold /dev/fuse, as a process that serves file systems does")
	flags.Parse(args)
	if *fuse {
		f, err := os.Open("/dev/fuse")
		if err != nil {
			panic(err)
		}
		held = f
	}
	dataDir := filepath.Join(filepath.Dir(strings.TrimPrefix(*endpoint, "unix://")), "../..")
	switch mode := trailer(); {
	case mode == "hang":
		time.Sleep(time.Hour) // Go ends a process in which nothing can happen any more
	case mode == "steal": // it takes its endpoint from elsewhere
		*endpoint = strings.TrimRight(*endpoint, ".12")
		os.Remove(strings.TrimPrefix(*endpoint, "unix://"))
	case mode == "other name":
		d.name = "other.example.com"
	case mode == "no stats":
		d.noStats = true
	case mode == "not ready":
		d.notReady = true
	case strings.HasPrefix(mode, "slow "):
		d.version = strings.TrimPrefix(mode, "slow ")
		awaitFile(context.Background(), filepath.Join(dataDir, d.version))
	case mode == "die":
		fmt.Fprintln(os.Stderr, "this build is broken")
		os.Exit(3)
	case mode == "die later":
		go func() {
			awaitFile(context.Background(), filepath.Join(dataDir, "may-die"))
			os.Exit(4)
		}()
	case mode != "":
		d.version = mode
	}
	eaten = make([]byte, *eat<<20)
	for i := 0; i < len(eaten); i += os.Getpagesize() {
		eaten[i] = 1
	}
	// For such a driver the socket of a killed predecessor is in the way.
	listener, err := net.Listen("unix", strings.TrimPrefix(*endpoint, "unix://"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("serving on", *endpoint)
	server := d.server()
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	go func() { <-term; server.Stop() }()
	server.Serve(listener)
	os.Exit(0)
}

var (
	eaten []byte   // of the driver
	held  *os.File // by the driver
)

// trailer returns what withTrailer has put at the end of this program.
func trailer() string {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		panic(err)
	}
	end := self[max(0, len(self)-100):]
	at := strings.LastIndex(string(end), "\n#trailer ")
	if at < 0 {
		return ""
	}
	return strings.TrimSpace(string(end[at+len("\n#trailer "):]))
}

// csiDriver implements what the registry reads from a driver.
type csiDriver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	csi.UnimplementedControllerServer
	version    string
	name       string // default: test.example.com
	notReady   bool
	controller bool
	noStats    bool
}

func (d *csiDriver) server() *grpc.Server {
	s := grpc.NewServer()
	csi.RegisterIdentityServer(s, d)
	if d.controller {
		csi.RegisterControllerServer(s, d)
	} else {
		csi.RegisterNodeServer(s, d)
	}
	return s
}

func (d *csiDriver) ControllerGetCapabilities(context.Context,
	*csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	return &csi.ControllerGetCapabilitiesResponse{}, nil
}

func (d *csiDriver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: cmp.Or(d.name, "test.example.com"), VendorVersion: d.version}, nil
}

func (d *csiDriver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(!d.notReady)}, nil
}

func (d *csiDriver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "node-1"}, nil
}

func (d *csiDriver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest,
) (*csi.NodeGetCapabilitiesResponse, error) {
	resp := &csi.NodeGetCapabilitiesResponse{}
	if !d.noStats {
		resp.Capabilities = []*csi.NodeServiceCapability{{Type: &csi.NodeServiceCapability_Rpc{
			Rpc: &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_GET_VOLUME_STATS},
		}}}
	}
	return resp, nil
}

// NodePublishVolume waits for the file that the volume's id names.
func (*csiDriver) NodePublishVolume(ctx context.Context, req *csi.NodePublishVolumeRequest,
) (*csi.NodePublishVolumeResponse, error) {
	return &csi.NodePublishVolumeResponse{}, awaitFile(ctx, req.GetVolumeId())
}

func awaitFile(ctx context.Context, path string) error {
	for ctx.Err() == nil {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return ctx.Err()
}

// serve runs a driver in the test's process, like a driver that the operator runs.
func serve(t *testing.T, socket string, d *csiDriver) (stop func()) {
	t.Helper()
	check.NoError(t, os.MkdirAll(filepath.Dir(socket), 0o700))
	listener, err := net.Listen("unix", socket)
	check.NoError(t, err)
	server := d.server()
	var wg sync.WaitGroup
	wg.Go(func() { server.Serve(listener) })
	stop = func() { server.Stop(); wg.Wait() }
	t.Cleanup(stop)
	return stop
}

// bridge is a storage plugin for real drivers that has only Fingerprint.
type bridge struct {
	storage.Client // nil: the registry calls nothing else
	away           atomic.Bool
	leases         atomic.Int64 // asked for
	held           atomic.Int64
	crashes        chan struct{} // a value breaks one stream
}

func newBridge() *bridge { return &bridge{crashes: make(chan struct{})} }

var errAway = errors.New("the plugin csi-bridge is not running")

func (b *bridge) lease(context.Context, string) (storage.Client, func(), error) {
	b.leases.Add(1)
	if b.away.Load() {
		return nil, nil, errAway
	}
	b.held.Add(1)
	return b, func() { b.held.Add(-1) }, nil
}

func (b *bridge) Fingerprint(ctx context.Context, d storage.Driver, opts storage.FingerprintOptions,
	report func(storage.Fingerprint) error,
) error {
	dial := func() (*grpc.ClientConn, error) {
		return grpc.NewClient(d.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithIdleTimeout(0))
	}
	conn, err := dial()
	if err != nil {
		return err
	}
	defer func() { conn.Close() }()
	var last *storage.Fingerprint
	for {
		if last != nil && last.Message == unreachable { // another connection has no pause between its attempts
			conn.Close()
			if conn, err = dial(); err != nil {
				return err
			}
		}
		if now := ask(ctx, conn); ctx.Err() == nil && (last == nil || !reflect.DeepEqual(*last, now)) {
			if err := report(now); err != nil {
				return err
			}
			last = &now
		}
		select {
		case <-time.After(opts.Interval):
		case <-b.crashes:
			return status.Error(codes.Unavailable, "the plugin ended")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// unreachable is the message of a driver that nobody listens for.
const unreachable = "the driver cannot be reached"

func ask(ctx context.Context, conn *grpc.ClientConn) storage.Fingerprint {
	probe, err := csi.NewIdentityClient(conn).Probe(ctx, &csi.ProbeRequest{})
	if err != nil {
		return storage.Fingerprint{Message: unreachable}
	}
	if !probe.GetReady().GetValue() {
		return storage.Fingerprint{Message: "the driver is not ready"}
	}
	info, err := csi.NewIdentityClient(conn).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	if err != nil {
		return storage.Fingerprint{Message: err.Error()}
	}
	fp := storage.Fingerprint{Healthy: true, Provider: info.GetName(), Version: info.GetVendorVersion()}
	if _, err := csi.NewControllerClient(conn).ControllerGetCapabilities(ctx,
		&csi.ControllerGetCapabilitiesRequest{}); err == nil {
		fp.Controller = &storage.ControllerCapabilities{CreateDelete: true}
		return fp
	}
	node, err := csi.NewNodeClient(conn).NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	if err != nil {
		return storage.Fingerprint{Message: err.Error()}
	}
	caps, err := csi.NewNodeClient(conn).NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
	if err != nil {
		return storage.Fingerprint{Message: err.Error()}
	}
	fp.Node = &storage.NodeCapabilities{NodeID: node.GetNodeId(), VolumeStats: len(caps.GetCapabilities()) > 0}
	return fp
}

// host is a registry with its dependencies.
type host struct {
	*Registry
	*bridge
	t       *testing.T
	bus     *events.Bus
	logs    *syncBuffer
	mu      sync.Mutex
	inUse   []string
	dataDir string
}

type syncBuffer struct {
	mu sync.Mutex
	strings.Builder
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Builder.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Builder.String()
}

var testTiming = timing{
	fingerprintEvery: 5 * time.Millisecond,
	restartMin:       20 * time.Millisecond, restartMax: 500 * time.Millisecond, stable: 10 * time.Second,
	retryMin: 5 * time.Millisecond, retryMax: 50 * time.Millisecond, unknownAfter: 300 * time.Millisecond,
	leaveEvery: 10 * time.Millisecond, stopGrace: 5 * time.Second,
	programEvery: 10 * time.Millisecond,
	tendEvery:    10 * time.Millisecond, leftGrace: time.Minute,
}

// newHost makes a host on dataDir. It is closed with the test, including its processes, and its events and log are
// printed if the test fails.
func newHost(t *testing.T, dataDir string) *host {
	h := &host{t: t, bridge: newBridge(), bus: events.New(0), logs: &syncBuffer{}, dataDir: dataDir}
	h.Registry = New(Config{
		DataDir: dataDir,
		Logger:  hclog.New(&hclog.LoggerOptions{Output: h.logs, Level: hclog.Trace}),
		Storage: h.lease, Events: h.bus, InUse: h.users, ReadSecret: config.ReadSecret,
	})
	h.timing = testTiming
	t.Cleanup(func() {
		if err := h.Close(true); err != nil {
			t.Errorf("close: %v", err)
		}
		if held := h.held.Load(); held != 0 {
			t.Errorf("%d leases of the storage plugin are still held", held)
		}
		if t.Failed() {
			t.Logf("events:\n%s\nlog:\n%s", strings.Join(h.happened(""), "\n"), h.logs)
		}
	})
	return h
}

func open(t *testing.T, dataDir string, declared ...Spec) *host {
	t.Helper()
	h := newHost(t, dataDir)
	h.open(declared...)
	return h
}

func (h *host) open(declared ...Spec) {
	h.t.Helper()
	if err := h.Open(h.t.Context(), declared); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) users(string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.inUse
}

func (h *host) setUsers(users ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.inUse = users
}

// wait waits until the driver meets a condition and returns it.
func (h *host) wait(id, what string, is func(Driver) bool) Driver {
	h.t.Helper()
	deadline := time.After(time.Minute)
	for {
		changed := h.Changed()
		d, err := h.Get(id)
		if err == nil && is(d) {
			return d
		}
		select {
		case <-changed:
		case <-deadline:
			h.t.Fatalf("driver %s is never %s; it is %+v (%v)", id, what, d, err)
		}
	}
}

func (h *host) healthy(id string) Driver {
	h.t.Helper()
	return h.wait(id, "healthy", func(d Driver) bool { return d.Healthy })
}

// waitGone waits until the driver does not exist.
func (h *host) waitGone(id string) {
	h.t.Helper()
	deadline := time.After(time.Minute)
	for {
		changed := h.Changed()
		if _, err := h.Get(id); errors.Is(err, ErrNotFound) {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			h.t.Fatalf("driver %s is never gone", id)
		}
	}
}

// happened lists the events as "type: message", optionally only those of one kind.
func (h *host) happened(kind string) []string {
	var all []string
	for _, e := range h.bus.Recent(1000) {
		if kind == "" || e.Type == kind {
			all = append(all, e.Type+": "+e.Message)
		}
	}
	return all
}

// kinds lists the events' types.
func (h *host) kinds() []string {
	var all []string
	for _, e := range h.bus.Recent(1000) {
		all = append(all, e.Type)
	}
	return all
}

// mustHaveHappened waits for events in this order; an event follows its change.
func (h *host) mustHaveHappened(kinds ...string) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), time.Minute)
	defer cancel()
	next := 0
	for e := range h.bus.Subscribe(ctx, 1000) {
		if e.Type == kinds[next] {
			next++
		}
		if next == len(kinds) {
			return
		}
	}
	h.t.Errorf("want events %v in this order, got %v", kinds, h.kinds())
}

func (h *host) mustNotHaveHappened(kind string) {
	h.t.Helper()
	if slices.Contains(h.kinds(), kind) {
		h.t.Errorf("event %q: %v", kind, h.happened(kind))
	}
}

// supervised is a spec of a driver that the registry runs.
func supervised(id string, args ...string) Spec {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return Spec{ID: id, Command: append([]string{self, "a-csi-driver"}, args...), HealthTimeout: time.Minute}
}

// shortDir returns a data directory whose path leaves room for a socket. Its test runs beside others.
func shortDir(t *testing.T) string {
	check.Parallel(t)
	dir, err := os.MkdirTemp("", "drv")
	check.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// alive reports whether a process runs and is no zombie.
func alive(pid int) bool {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if state, ok := strings.CutPrefix(lines.Text(), "State:\t"); ok {
			return state[0] != 'Z' && state[0] != 'X'
		}
	}
	return false
}
