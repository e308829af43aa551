package clusterbench

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/discovery"
	"github.com/pannier/pannier/cluster/raftnode"
	"github.com/pannier/pannier/host/internal/peer/pki"
	"github.com/pannier/pannier/host/internal/peer/pki/pkitest"
	"github.com/pannier/pannier/host/internal/peer/transport"
)

// entrySize is the size of an entry of the floors, about that of a claim's command, in bytes.
const entrySize = 512

// floorAs is the variable that makes this program a server of a floor: a floorServer in JSON.
const floorAs = "CLUSTERBENCH_FLOOR"

// floorServer is a process of a floor.
type floorServer struct {
	Raft  bool // hashicorp/raft as in the ledger, else only what cannot be left out
	Dir   string
	Files pki.Files
	Name  string
	All   map[string]string // addresses of all servers, by name
}

// raftFloor is three servers with raft, its log and its connections as in the ledger, whose entries change nothing, and
// a client over gRPC as agents use it.
func raftFloor(b *testing.B) *contender {
	b.Helper()
	addresses, pids, dialer := startFloor(b, true, servers)
	apply := func(ctx context.Context, name string) error {
		conn, err := dialer.Conn(addresses[name], name, pki.Server)
		if err != nil {
			return err
		}
		var answer []byte
		return conn.Invoke(ctx, "/floor/Apply", make([]byte, entrySize), &answer, grpc.ForceCodec(raw{}))
	}
	var leader string
	await(b, "a server of the floor leads", func() (err error) {
		for name := range addresses {
			if err = apply(b.Context(), name); err == nil {
				leader = name
				return nil
			}
		}
		return err
	})
	return &contender{
		name: "Floor: raft alone, entries that change nothing", short: "Floor: raft alone",
		pids: pids, take: func(ctx context.Context, _ int) error { return apply(ctx, leader) },
	}
}

// syncFloor is what no replication can leave out: a leader that writes and syncs a batch while one other server does,
// over TLS connections as between agents.
func syncFloor(b *testing.B) *contender {
	b.Helper()
	addresses, pids, dialer := startFloor(b, false, 2)
	var mu, dialing sync.Mutex
	var idle []net.Conn
	b.Cleanup(func() {
		for _, conn := range idle {
			_ = conn.Close()
		}
	})
	take := func(ctx context.Context, _ int) (err error) {
		mu.Lock()
		var conn net.Conn
		if n := len(idle); n > 0 {
			conn, idle = idle[n-1], idle[:n-1]
		}
		mu.Unlock()
		if conn == nil {
			// One after the other: a server refuses more than a hundred handshakes of an address at once.
			dialing.Lock()
			conn, err = dialer.Raft(ctx, floorLeader, addresses[floorLeader])
			dialing.Unlock()
			if err != nil {
				return err
			}
		}
		entry := make([]byte, entrySize)
		if _, err = conn.Write(entry); err == nil {
			_, err = io.ReadFull(conn, entry)
		}
		if err != nil {
			return errors.Join(err, conn.Close())
		}
		mu.Lock()
		idle = append(idle, conn)
		mu.Unlock()
		return nil
	}
	await(b, "the floor answers", func() error { return take(b.Context(), 0) })
	return &contender{
		name: "Floor: a leader and one follower that only sync", short: "Floor: sync alone", pids: pids, take: take,
	}
}

// floorLeader is the server that leads the floor without raft.
const floorLeader = "server-1"

// await repeats try until it succeeds.
func await(b *testing.B, what string, try func() error) {
	b.Helper()
	for late := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(late) {
			b.Fatalf("it did not come to this: %s: %v", what, err)
		}
	}
}

func startFloor(b *testing.B, withRaft bool, n int) (addresses map[string]string, pids []int, d *transport.Dialer) {
	b.Helper()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	ca := pkitest.New(b)
	addresses = map[string]string{}
	names := []string{floorLeader, "server-2", "server-3"}[:n]
	for i, port := range freePorts(b, n) {
		addresses[names[i]] = (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}).String()
	}
	for _, name := range names {
		as, err := json.Marshal(floorServer{
			Raft: withRaft, Dir: b.TempDir(), Files: ca.Files(b, pki.Server, name), Name: name, All: addresses,
		})
		if err != nil {
			b.Fatal(err)
		}
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), floorAs+"="+string(as))
		cmd.Stderr = os.Stderr
		cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		pids = append(pids, cmd.Process.Pid)
	}
	d = transport.NewDialer(ca.Certs(b, pki.Server, "client"))
	b.Cleanup(func() { _ = d.Close() })
	return addresses, pids, d
}

// serveFloor is a server of a floor, until the process is killed.
func serveFloor(as string) {
	var s floorServer
	err := json.Unmarshal([]byte(as), &s)
	if err == nil {
		err = s.serve()
	}
	log.Fatal(err)
}

func (s floorServer) serve() error {
	certs, err := pki.Load(s.Files, pki.Identity{Name: s.Name, Role: pki.Server, DC: pkitest.DC}, hclog.NewNullLogger())
	if err != nil {
		return err
	}
	port, err := transport.Open(context.Background(), transport.Config{
		Addr: s.All[s.Name], Certs: certs, Logger: hclog.NewNullLogger(),
	})
	if err != nil {
		return err
	}
	dialer := transport.NewDialer(certs)
	if s.Raft {
		return s.raft(port, dialer)
	}
	return s.bare(port, dialer)
}

// raft replicates each call's entry.
func (s floorServer) raft(port *transport.Port, dialer *transport.Dialer) error {
	auto := claim.DefaultAutopilot()
	var n *raftnode.Node
	n, err := raftnode.Open(raftnode.Config{
		Dir: s.Dir, ID: s.Name, BootstrapExpect: servers, Streams: transport.NewRaftLayer(port, dialer),
		Members: fixedMembers(s.All), Autopilot: func() claim.Autopilot { return auto },
		FSM: idleFSM{}, SnapshotIndex: func(io.Reader) (uint64, error) { return 0, nil }, Logger: hclog.NewNullLogger(),
	})
	if err != nil {
		return err
	}
	go func() {
		for range n.Leadership { // raft waits until it is read
		}
	}()
	apply := func(_ any, stream grpc.ServerStream) error {
		var entry []byte
		if err := stream.RecvMsg(&entry); err != nil {
			return err
		}
		if err := n.Apply(entry, 0).Error(); err != nil {
			return status.Error(codes.Unavailable, err.Error())
		}
		return stream.SendMsg([]byte{})
	}
	return grpc.NewServer(append(port.ServerOptions(), grpc.ForceServerCodec(raw{}),
		grpc.UnknownServiceHandler(apply))...).Serve(port.GRPC())
}

// fixedMembers are the servers of a floor, which has no gossip.
type fixedMembers map[string]string

func (m fixedMembers) Members() (all []discovery.Member) {
	for name, address := range m {
		self := discovery.Self{Name: name, Role: discovery.Server, RPC: address, Expect: servers}
		all = append(all, discovery.Member{Self: self, Status: discovery.Alive})
	}
	return all
}

func (fixedMembers) Changed() <-chan struct{}      { return nil }
func (fixedMembers) SetFormed()                    {}
func (fixedMembers) ForceLeave(string, bool) error { return nil }

// idleFSM does nothing.
type idleFSM struct{}

func (idleFSM) Apply(*raft.Log) any                  { return nil }
func (idleFSM) ApplyBatch(entries []*raft.Log) []any { return make([]any, len(entries)) }
func (idleFSM) Snapshot() (raft.FSMSnapshot, error)  { return nil, errors.ErrUnsupported }
func (idleFSM) Restore(snapshot io.ReadCloser) error { return snapshot.Close() }

// bare writes and syncs what comes. The leader's clients wait until the other server has written it, too.
func (s floorServer) bare(port *transport.Port, dialer *transport.Dialer) error {
	// Allocated and written before, so that a sync writes nothing but the entries.
	file, err := os.Create(filepath.Join(s.Dir, "log"))
	if err != nil {
		return err
	}
	if _, err := file.Write(make([]byte, 64<<20)); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	at := int64(0)
	write := func(entries []byte) error {
		if at += int64(len(entries)); at > 64<<20 {
			at = int64(len(entries))
		}
		_, err := file.WriteAt(entries, at-int64(len(entries)))
		return errors.Join(err, unix.Fdatasync(int(file.Fd())))
	}
	l := port.Raft()
	if s.Name != floorLeader {
		conn, err := l.Accept()
		for err == nil {
			err = follow(conn, write)
		}
		return err
	}
	batches := make(chan waitingEntry, 256)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				log.Fatal(err)
			}
			go answer(conn, batches)
		}
	}()
	other, err := dialer.Raft(context.Background(), "server-2", s.All["server-2"])
	for err != nil {
		time.Sleep(50 * time.Millisecond)
		other, err = dialer.Raft(context.Background(), "server-2", s.All["server-2"])
	}
	return lead(other, batches, write)
}

// waitingEntry is one client's entry.
type waitingEntry struct {
	entry []byte
	done  chan struct{}
}

// lead replicates all entries that wait, again and again.
func lead(other net.Conn, waiting <-chan waitingEntry, write func([]byte) error) error {
	written := make(chan error)
	for {
		batch := []waitingEntry{<-waiting}
		for more := true; more && len(batch) < 255; {
			select {
			case w := <-waiting:
				batch = append(batch, w)
			default:
				more = false
			}
		}
		message := []byte{byte(len(batch))}
		for _, w := range batch {
			message = append(message, w.entry...)
		}
		if _, err := other.Write(message); err != nil {
			return err
		}
		go func() { written <- write(message[1:]) }()
		_, err := io.ReadFull(other, make([]byte, 1))
		if err = errors.Join(err, <-written); err != nil {
			return err
		}
		for _, w := range batch {
			close(w.done)
		}
	}
}

// follow writes one batch.
func follow(conn net.Conn, write func([]byte) error) error {
	n := make([]byte, 1)
	if _, err := io.ReadFull(conn, n); err != nil {
		return err
	}
	entries := make([]byte, int(n[0])*entrySize)
	if _, err := io.ReadFull(conn, entries); err != nil {
		return err
	}
	if err := write(entries); err != nil {
		return err
	}
	_, err := conn.Write(n)
	return err
}

// answer serves one client.
func answer(conn net.Conn, batches chan<- waitingEntry) {
	for {
		w := waitingEntry{make([]byte, entrySize), make(chan struct{})}
		if _, err := io.ReadFull(conn, w.entry); err != nil {
			return
		}
		batches <- w
		<-w.done
		if _, err := conn.Write(w.entry); err != nil {
			return
		}
	}
}
