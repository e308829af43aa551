package security_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testcluster"
	"github.com/pannier/pannier/test/lib/testhost"
	"github.com/pannier/pannier/test/lib/testnet"
)

// The ALPN protocols of the port between agents.
const (
	raftProtocol  = "pannier-raft/1"
	agentProtocol = "pannier-rpc/1"
	httpProtocol  = "http/1.1"
)

// intruder is a stranger in the cluster's network.
type intruder struct {
	t   *testing.T
	c   *testcluster.Cluster
	net *testnet.Host
}

// ours returns a certificate of the cluster's authority, which testcluster has created.
func (i intruder) ours(role, name string) *tls.Config {
	i.t.Helper()
	return i.certificate(i.c.Dir, "dc1-"+role+"-"+name)
}

func (i intruder) certificate(dir, name string) *tls.Config {
	i.t.Helper()
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".pem"), filepath.Join(dir, name+"-key.pem"))
	if err != nil {
		i.t.Fatal(err)
	}
	cfg := i.nobody()
	cfg.Certificates = []tls.Certificate{cert}
	return cfg
}

// nobody returns a configuration without a certificate.
func (i intruder) nobody() *tls.Config {
	i.t.Helper()
	ca, err := os.ReadFile(filepath.Join(i.c.Dir, "ca.pem"))
	if err != nil {
		i.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		i.t.Fatal("the authority has no certificate")
	}
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
}

// dial connects to a port of a host from the intruder's network.
func (i intruder) dial(to *testhost.Host, port uint16) (conn net.Conn, err error) {
	err = i.net.Do(func() error {
		conn, err = net.DialTimeout("tcp", netip.AddrPortFrom(to.Net.Addr, port).String(), testhost.Wait)
		return err
	})
	return conn, err
}

// speak is dial with a TLS handshake for a protocol.
func (i intruder) speak(to *testhost.Host, as *tls.Config, protocol string) (*tls.Conn, error) {
	raw, err := i.dial(to, testcluster.RPCPort)
	if err != nil {
		return nil, err
	}
	cfg := as.Clone()
	role := "node"
	if strings.HasPrefix(to.Name, "server-") {
		role = "server"
	}
	cfg.ServerName, cfg.NextProtos = role+".dc1.pannier", []string{protocol}
	conn := tls.Client(raw, cfg)
	_ = raw.SetDeadline(time.Now().Add(testhost.Wait))
	if err := conn.Handshake(); err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	return conn, nil
}

// heard returns the error with which a silent connection ends, at its first read.
func heard(conn net.Conn) error {
	_ = conn.SetReadDeadline(time.Now().Add(testhost.Wait))
	_, err := conn.Read(make([]byte, 1))
	return err
}

// agent returns a connection for calls between agents.
func (i intruder) agent(to *testhost.Host, as *tls.Config) *grpc.ClientConn {
	i.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+to.Name,
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the dialer brings TLS
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{}), grpc.MaxCallSendMsgSize(200<<20)),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return i.speak(to, as, agentProtocol) }))
	if err != nil {
		i.t.Fatal(err)
	}
	i.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// raw is a codec that sends messages unchanged.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error)      { return v.([]byte), nil }
func (raw) Unmarshal(data []byte, v any) error { *v.(*[]byte) = bytes.Clone(data); return nil }
func (raw) Name() string                       { return "proto" }

// message returns a message with the fields node (1) and, unless it is empty, another one (2).
func message(node string, second []byte) []byte {
	m := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), node)
	if second != nil {
		m = protowire.AppendBytes(protowire.AppendTag(m, 2, protowire.BytesType), second)
	}
	return m
}

// call makes one call, with a node's secret unless it is empty.
func (i intruder) call(conn *grpc.ClientConn, method, secret string, msg []byte) error {
	ctx, cancel := context.WithTimeout(i.t.Context(), testhost.Wait)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "leader-term", "1000000")
	if secret != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "node-secret", secret)
	}
	var answer []byte
	if err := conn.Invoke(ctx, method, msg, &answer); err != nil || !strings.HasSuffix(method, "/Apply") {
		return err
	}
	// The answer contains the outcome of a command.
	applied, _ := field(answer, 1)
	refused, ok := field(applied, 2)
	if !ok {
		return nil
	}
	s := status.New(codes.OK, "").Proto()
	if err := proto.Unmarshal(refused, s); err != nil {
		i.t.Fatal(err)
	}
	return status.ErrorProto(s)
}

// field returns the first field of a message with that number.
func field(message []byte, number protowire.Number) (value []byte, ok bool) {
	for len(message) > 0 {
		num, kind, n := protowire.ConsumeField(message)
		if n < 0 {
			return nil, false
		}
		if num == number && kind == protowire.BytesType {
			_, _, tag := protowire.ConsumeTag(message)
			value, _ = protowire.ConsumeBytes(message[tag:])
			return value, true
		}
		message = message[n:]
	}
	return nil, false
}

// ask makes a call to the leader, which may change meanwhile.
func (i intruder) ask(servers []*grpc.ClientConn, method, secret string, msg []byte) (err error) {
	i.c.Hosts[0].Eventually("the server that leads answers", func() error {
		for _, conn := range servers {
			err = i.call(conn, method, secret, msg)
			if code := status.Code(err); code != codes.FailedPrecondition && code != codes.Unavailable {
				return nil
			}
		}
		return err
	})
	return err
}

// methods returns the methods of a service between agents, from its protobuf file.
func methods(t *testing.T, file, service string) (paths []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testbin.Root(), file))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^\s*rpc (\w+)\(`).FindAllSubmatch(text, -1) {
		paths = append(paths, "/"+service+"/"+string(m[1]))
	}
	if len(paths) == 0 {
		t.Fatalf("%s has no method", file)
	}
	return paths
}

func secretOf(t *testing.T, h *testhost.Host) string {
	t.Helper()
	secret, err := os.ReadFile(h.Path("data/node.secret"))
	if err != nil {
		t.Fatal(err)
	}
	return string(secret)
}

func entry(t *testing.T, c command.Command) []byte {
	t.Helper()
	data, err := command.Encode(c)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// denied checks that a call was refused for lack of permission.
func denied(t *testing.T, what string, err error) {
	t.Helper()
	if code := status.Code(err); code != codes.PermissionDenied && code != codes.Unimplemented {
		t.Errorf("%s: %v", what, err)
	}
}

// goesOn checks that the cluster still works: a workload on a node gets its volume and releases it.
func goesOn(t *testing.T, c *testcluster.Cluster) {
	t.Helper()
	n := c.Host("node-1")
	n.Run("workload", "start", c.Workload(n, "meanwhile", "free"))
	n.Run("workload", "stop", "meanwhile")
}

// logged waits until a line in the log of any host has all of these words.
func logged(hosts []*testhost.Host, words ...string) {
	hosts[0].Eventually("a log says "+strings.Join(words, " … "), func() error {
		for _, h := range hosts {
			text, err := os.ReadFile(h.Path("agent.log"))
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(text)) {
				if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
					return nil
				}
			}
		}
		return errors.New("none does")
	})
}
