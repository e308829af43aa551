package clusterbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testhost"
)

// etcd is a cluster of three members without TLS, with default settings: each log entry is synced.
type etcd struct {
	conns []*grpc.ClientConn // the connection to the leader is the first
	pids  []int
}

// etcdProgram is the program in Debian's package etcd-server.
const etcdProgram = "/usr/bin/etcd"

func startEtcd(b *testing.B) *etcd {
	b.Helper()
	dir := b.TempDir()
	ports := freePorts(b, 6)
	var all []string
	for n := range 3 {
		all = append(all, fmt.Sprintf("m%d=http://127.0.0.1:%d", n, ports[2*n]))
	}
	e := &etcd{}
	for n := range 3 {
		peers, clients := fmt.Sprint("http://127.0.0.1:", ports[2*n]), fmt.Sprint("http://127.0.0.1:", ports[2*n+1])
		log := check.Must(os.Create(filepath.Join(dir, fmt.Sprintf("m%d.log", n))))(b)
		cmd := exec.Command(etcdProgram, "--name", fmt.Sprint("m", n), "--data-dir", filepath.Join(dir, fmt.Sprint("m", n)),
			"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--listen-client-urls", clients,
			"--advertise-client-urls", clients,
			"--initial-cluster", strings.Join(all,
				","), "--initial-cluster-state", "new", "--logger", "zap", "--log-level", "warn")
		cmd.Stdout, cmd.Stderr = log, log
		cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
		if err := errors.Join(cmd.Start(), log.Close()); err != nil {
			b.Fatalf("start etcd, of Debian's package etcd-server: %v", err)
		}
		b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		e.pids = append(e.pids, cmd.Process.Pid)
	}
	for n := range 3 {
		conn, err := grpc.NewClient(fmt.Sprint("127.0.0.1:", ports[2*n+1]),
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})))
		check.NoError(b, err)
		b.Cleanup(func() { _ = conn.Close() })
		e.conns = append(e.conns, conn)
	}
	for late := time.Now().Add(testhost.Wait); ; time.Sleep(50 * time.Millisecond) {
		err := e.lead(b.Context())
		if err == nil {
			return e
		}
		if time.Now().After(late) {
			b.Fatalf("etcd is not ready: %v", err)
		}
	}
}

// lead puts the connection to the leader first.
func (e *etcd) lead(ctx context.Context) error {
	var errs error
	for n, conn := range e.conns {
		var status []byte
		if err := conn.Invoke(ctx, "/etcdserverpb.Maintenance/Status", []byte{}, &status); err != nil {
			errs = errors.Join(errs, err)
			continue
		}
		// StatusResponse: the header is field 1, of which member_id is field 2; the leader's is 4.
		header, _ := fields(status)
		_, id := fields(header[1])
		_, leader := fields(status)
		if leader[4] != 0 && id[2] == leader[4] {
			e.conns[0], e.conns[n] = conn, e.conns[0]
			return nil
		}
	}
	return errors.Join(errs, errors.New("no member leads"))
}

// take puts a value under an unused key in one transaction. It returns false if the key is in use.
func (e *etcd) take(ctx context.Context, key string, value []byte) (bool, error) {
	var compare, put, op, txn []byte
	// Compare: result EQUAL (0), target CREATE (1), key, create_revision 0.
	compare = protowire.AppendTag(compare, 2, protowire.VarintType)
	compare = protowire.AppendVarint(compare, 1)
	compare = appendBytes(compare, 3, []byte(key))
	compare = protowire.AppendTag(compare, 5, protowire.VarintType)
	compare = protowire.AppendVarint(compare, 0)
	put = appendBytes(put, 1, []byte(key))
	put = appendBytes(put, 2, value)
	op = appendBytes(op, 2, put)
	txn = appendBytes(txn, 1, compare)
	txn = appendBytes(txn, 2, op)
	var answer []byte
	if err := e.conns[0].Invoke(ctx, "/etcdserverpb.KV/Txn", txn, &answer); err != nil {
		return false, err
	}
	_, numbers := fields(answer)
	return numbers[2] == 1, nil
}

func appendBytes(to []byte, field protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, field, protowire.BytesType), value)
}

// fields returns the fields of a message, separated into bytes and numbers.
func fields(message []byte) (bytes map[protowire.Number][]byte, numbers map[protowire.Number]uint64) {
	bytes, numbers = map[protowire.Number][]byte{}, map[protowire.Number]uint64{}
	for len(message) > 0 {
		field, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return bytes, numbers
		}
		message = message[n:]
		switch kind {
		case protowire.VarintType:
			numbers[field], n = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			bytes[field], n = protowire.ConsumeBytes(message)
		default:
			n = protowire.ConsumeFieldValue(field, kind, message)
		}
		if n < 0 {
			return bytes, numbers
		}
		message = message[n:]
	}
	return bytes, numbers
}

// raw is a codec for messages that are already encoded.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) ([]byte, error) { return v.([]byte), nil }

func (raw) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}
