package bench

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/raft"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/pannier/pannier/cluster/raftnode"
	"github.com/pannier/pannier/internal/atomicfile"
	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
	"github.com/pannier/pannier/sdk/wire"
	"github.com/pannier/pannier/sdk/wire/wirehost"
)

// The floor of an agent's start is a process that does at the same time what no agent can leave out, and nothing else:
// it opens Badger twice and raft's log, leads alone, and has one plugin that runs from a synced copy whose bytes were
// hashed, with a key of its own, or reattaches to it. Then it answers that it is healthy. It has no configuration, no
// workloads, no drivers and no API.

// floorReady is TestMain of that process. It is killed.
func floorReady(dir, program string) error {
	var g errgroup.Group
	g.Go(func() error { return havePlugin(dir, program) })
	if _, _, err := openStores(dir); err != nil {
		return err
	}
	if err := g.Wait(); err != nil {
		return err
	}
	socket := floorSocket(dir)
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(
		func(http.ResponseWriter, *http.Request) {})}
	return server.Serve(l)
}

func floorSocket(dir string) string { return filepath.Join(dir, "api.sock") }

// openStores opens the journal's and the ledger's database at the same time, and raft, which writes each entry into the
// ledger's. It waits until this server leads and has applied its log.
func openStores(dir string) (ledger *badger.DB, n *raftnode.Node, err error) {
	var g errgroup.Group
	g.Go(func() error {
		_, err := openStore(filepath.Join(dir, "journal"), 1<<20)
		return err
	})
	g.Go(func() (err error) {
		if ledger, err = openStore(filepath.Join(dir, "ledger"), 4<<20); err != nil {
			return err
		}
		n, err = raftnode.Open(raftnode.Config{
			Dir: filepath.Join(dir, "raft"), ID: "a", BootstrapExpect: 1, FSM: bareFSM{ledger}, Logger: hclog.NewNullLogger(),
		})
		if err != nil {
			return err
		}
		<-n.Leadership
		return n.Barrier(0).Error()
	})
	return ledger, n, g.Wait()
}

func openStore(dir string, table int64) (*badger.DB, error) {
	return badger.Open(badger.DefaultOptions(dir).WithLogger(nil).WithMetricsEnabled(false).WithMemTableSize(table).
		WithNumMemtables(2).WithBaseTableSize(2 << 20).WithValueThreshold(64 << 10).WithValueLogFileSize(1 << 20).
		WithCompression(options.None).WithBlockCacheSize(0).WithIndexCacheSize(0).WithNumCompactors(0))
}

// bareFSM writes each entry into a database, whose key is the entry's index.
type bareFSM struct{ db *badger.DB }

func (f bareFSM) Apply(l *raft.Log) any { return f.ApplyBatch([]*raft.Log{l})[0] }

func (f bareFSM) ApplyBatch(logs []*raft.Log) []any {
	results := make([]any, len(logs))
	err := f.db.Update(func(tx *badger.Txn) error {
		for _, l := range logs {
			if l.Type != raft.LogCommand {
				continue
			}
			if err := tx.Set(binary.BigEndian.AppendUint64(nil, l.Index), l.Data); err != nil {
				return err
			}
		}
		return nil
	})
	for n := range results {
		results[n] = err
	}
	return results
}

func (bareFSM) Snapshot() (raft.FSMSnapshot, error) { return nil, errors.New("there is nothing") }
func (bareFSM) Restore(r io.ReadCloser) error       { return r.Close() }

// floorPlugin is what the next process needs to reattach.
type floorPlugin struct {
	Authority []byte
	Address   string
	Version   int
	PID       int
}

func floorRecord(dir string) string { return filepath.Join(dir, "plugin.json") }

func readFloorPlugin(dir string) (p floorPlugin, err error) {
	data, err := os.ReadFile(floorRecord(dir))
	if err == nil {
		err = json.Unmarshal(data, &p)
	}
	return p, err
}

// havePlugin reattaches to the plugin of an earlier process, or starts one.
func havePlugin(dir, program string) error {
	p, err := readFloorPlugin(dir)
	if err == nil {
		return p.reattach()
	}
	if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return startFloorPlugin(dir, program)
}

const floorName = "floor.plugin.pannier"

func (p floorPlugin) reattach() error {
	authority, err := wire.ParseAuthority(p.Authority)
	if err != nil {
		return err
	}
	cfg := floorClient(authority)
	cfg.Plugins = cfg.VersionedPlugins[p.Version]
	cfg.Reattach = &plugin.ReattachConfig{
		Protocol: plugin.ProtocolGRPC, ProtocolVersion: p.Version, Pid: p.PID,
		Addr: &net.UnixAddr{Net: "unix", Name: p.Address},
	}
	_, err = askFloorPlugin(plugin.NewClient(cfg))
	return err
}

func startFloorPlugin(dir, program string) error {
	authority, err := wire.NewAuthority()
	if err != nil {
		return err
	}
	bundle, err := authority.Issue(floorName)
	if err != nil {
		return err
	}
	key, copied := filepath.Join(dir, "tls.pem"), filepath.Join(dir, "plugin")
	if err := errors.Join(os.WriteFile(key, bundle, 0o600), copyHashed(program, copied)); err != nil {
		return err
	}
	synced := make(chan error, 1)
	go func() { synced <- atomicfile.Sync(copied) }() // while the process starts
	cfg := floorClient(authority)
	cfg.Cmd = exec.Command(copied)
	cfg.Cmd.Env = []string{wire.EnvTLSBundle + "=" + key}
	cfg.SkipHostEnv = true
	cfg.UnixSocketConfig = &plugin.UnixSocketConfig{TempDir: dir}
	client := plugin.NewClient(cfg)
	addr, err := askFloorPlugin(client)
	if err != nil {
		return err
	}
	p := floorPlugin{Address: addr.String(), Version: client.NegotiatedVersion(), PID: cfg.Cmd.Process.Pid}
	if p.Authority, err = authority.MarshalPEM(); err != nil {
		return err
	}
	record, err := json.Marshal(p)
	if err != nil {
		return err
	}
	if err := <-synced; err != nil {
		return err
	}
	return writeSynced(floorRecord(dir), record)
}

func floorClient(authority *wire.Authority) *plugin.ClientConfig {
	return &plugin.ClientConfig{
		HandshakeConfig: wirehost.Handshake, VersionedPlugins: wirehost.Plugins(nil),
		TLSConfig: authority.ClientTLS(floorName), Logger: hclog.NewNullLogger(),
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
	}
}

// askFloorPlugin connects to the plugin, and asks what it is.
func askFloorPlugin(client *plugin.Client) (net.Addr, error) {
	addr, err := client.Start()
	if err != nil {
		return nil, err
	}
	proto, err := client.Client()
	if err != nil {
		return nil, err
	}
	raw, err := proto.Dispense(wirehost.PluginName)
	if err != nil {
		return nil, err
	}
	conn := raw.(*grpc.ClientConn) //nolint:forcetypeassert // wire gives nothing else
	return addr, conn.Invoke(context.Background(), pluginv1.PluginService_Info_FullMethodName, &pluginv1.InfoRequest{},
		&pluginv1.InfoResponse{})
}

// copyHashed copies a program, and hashes what it copies.
func copyHashed(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o700)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.MultiWriter(out, sha256.New()), in)
	return errors.Join(err, out.Close())
}

func writeSynced(path string, data []byte) error {
	f, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// floorStart starts the floor's process in a directory, and kills it once it is healthy, as the agent is.
func floorStart(b *testing.B, dir, program string) time.Duration {
	b.Helper()
	cmd := exec.Command(os.Args[0], dir, program)
	cmd.Env = append(os.Environ(), envFloor+"=ready")
	a := startReady(b, cmd, filepath.Join(dir, "log"), floorSocket(dir))
	a.end(unix.SIGKILL)
	return a.ready
}

// floorStarts starts the floor's process on an empty directory, and again while its plugin runs.
func floorStarts(b *testing.B, program string) (first, again time.Duration) {
	b.Helper()
	dir, err := os.MkdirTemp("", "pf-") // a short path, for the sockets
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(dir)
	defer func() {
		if p, err := readFloorPlugin(dir); err == nil {
			_ = unix.Kill(p.PID, unix.SIGKILL)
		}
	}()
	return floorStart(b, dir, program), floorStart(b, dir, program)
}
