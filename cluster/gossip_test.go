package cluster_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/serf/serf"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/discovery"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/clustertest"
)

// logged is a log that a test reads.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) has(words ...string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			return true
		}
	}
	return false
}

// forger sends gossip that is encrypted with the cluster's key.
type forger struct {
	t    *testing.T
	key  []byte
	time uint32 // later than that of any message of the cluster
}

// leave says that a member leaves and has gone: the two packets that its own agent would send.
func (f *forger) leave(to *clustertest.Host, member string) {
	f.t.Helper()
	const deadMsg, userMsg, leaveMsg = 5, 8, 0 // of memberlist, and of serf
	f.time += 1000
	intent := fields(3, "LTime", f.time, "Node", member, "Prune", false)
	f.send(to, append([]byte{userMsg, leaveMsg}, intent...))
	f.send(to, append([]byte{deadMsg}, fields(3, "Incarnation", f.time, "Node", member, "From", member)...))
}

// fields encodes a message as memberlist does (msgpack).
func fields(n byte, pairs ...any) []byte {
	msg := []byte{0x80 | n}
	for _, v := range pairs {
		switch v := v.(type) {
		case string:
			msg = append(append(msg, 0xa0|byte(len(v))), v...)
		case uint32:
			msg = binary.BigEndian.AppendUint32(append(msg, 0xce), v)
		case bool:
			msg = append(msg, 0xc2)
		}
	}
	return msg
}

func (f *forger) send(to *clustertest.Host, msg []byte) {
	f.t.Helper()
	block, err := aes.NewCipher(f.key)
	if err != nil {
		f.t.Fatal(err)
	}
	sealer, err := cipher.NewGCM(block)
	if err != nil {
		f.t.Fatal(err)
	}
	nonce := make([]byte, sealer.NonceSize())
	_, _ = rand.Read(nonce) // never fails
	conn, err := net.Dial("udp", to.Discovery.Addr())
	if err != nil {
		f.t.Fatal(err)
	}
	defer conn.Close()
	const version = 1 // not padded
	if _, err := conn.Write(sealer.Seal(append([]byte{version}, nonce...), nonce, msg, nil)); err != nil {
		f.t.Fatal(err)
	}
}

// TestForgedLeave: who has the gossip key says that servers leave, which run and do not.
func TestForgedLeave(t *testing.T) {
	t.Parallel()
	key, log := make([]byte, 32), &logged{}
	_, _ = rand.Read(key) // never fails
	c := clustertest.Form(t, 3, clustertest.Options{
		Key: base64.StdEncoding.EncodeToString(key),
		Log: hclog.New(&hclog.LoggerOptions{Output: log, Level: hclog.Info}),
	})
	c.WaitVoters(t, names(c.Hosts())...)
	leader := c.WaitLeader(t)
	f := &forger{t: t, key: key, time: 1 << 16}
	healthy := func() bool {
		peers, err := leader.Peers(within(t))
		check.NoError(t, err)
		return len(peers) == 3 && !slices.ContainsFunc(peers, func(p cluster.Peer) bool { return !p.Voter })
	}
	for _, h := range c.Hosts() {
		if h == leader {
			continue
		}
		clustertest.Eventually(t, "the leader has seen the forged leave", func() bool {
			f.leave(leader, h.Name)
			if log.has("a server has left") || !healthy() {
				t.Fatalf("%s was removed, by two packets", h.Name)
			}
			return log.has("the server says that it has not", "server="+h.Name)
		})
	}
	if !healthy() {
		t.Error("a server votes no more")
	}
	register(t, c.Client(), "a")
}

// TestAServerOfGossipOnly: who has the gossip key announces servers that do not exist, the first and the last by name,
// with any tags: the cluster is formed, grows and is written to as without them.
func TestAServerOfGossipOnly(t *testing.T) {
	t.Parallel()
	c := clustertest.Prepare(t, 3, clustertest.Options{})
	first := c.Hosts()[0]
	first.Start(t)
	for _, ghost := range []string{"a-ghost", "z-ghost"} {
		announce(t, ghost, first, map[string]string{
			"role": "server", "id": ghost, "dc": "dc1", "rpc": "127.0.0.1:1", "expect": "3", "bootstrapped": "1",
			"ledger": "-1", "version": "0.0.0", "cluster": "another",
		})
	}
	for _, other := range c.Hosts()[1:] {
		other.Start(t)
	}
	c.WaitReady(t)
	c.WaitVoters(t, "server-1", "server-2", "server-3")
	register(t, c.Client(), "a")
	c.Add(t, "server-4", 3).Start(t)
	c.WaitVoters(t, names(c.Hosts())...)
	register(t, c.Client(), "b")
}

// announce has a member in gossip that is no agent, until the test ends.
func announce(t *testing.T, name string, to *clustertest.Host, tags map[string]string) {
	t.Helper()
	conf := serf.DefaultConfig()
	conf.NodeName, conf.Tags, conf.LogOutput = name, tags, io.Discard
	conf.MemberlistConfig.BindAddr, conf.MemberlistConfig.BindPort = "127.0.0.1", 0
	conf.MemberlistConfig.LogOutput = io.Discard
	ghost := check.Must(serf.Create(conf))(t)
	t.Cleanup(func() {
		check.NoError(t, ghost.Shutdown())
		<-ghost.ShutdownCh()
	})
	check.Must(ghost.Join([]string{to.Discovery.Addr()}, true))(t)
	clustertest.Eventually(t, "gossip knows "+name, func() bool {
		m, known := to.Discovery.Member(name)
		return known && m.Role == discovery.Server && m.Status == discovery.Alive
	})
}

// TestLeftAndDead: a server that has only told gossip that it leaves, and does not answer, is removed as a dead one,
// once another has replaced it.
func TestLeftAndDead(t *testing.T) {
	t.Parallel()
	c := clustertest.Form(t, 3, clustertest.Options{})
	c.WaitVoters(t, names(c.Hosts())...)
	gone := c.Follower(t)
	check.NoError(t, gone.Discovery.Leave())
	gone.Stop(t)
	leader := c.WaitLeader(t)
	clustertest.Eventually(t, "gossip knows", func() bool {
		m, _ := leader.Discovery.Member(gone.Name)
		return m.Status == discovery.Left
	})
	c.Add(t, "server-4", 3).Start(t)
	c.WaitReady(t)
	c.WaitVoters(t, names(c.Up())...)
}

// TestLeaveKeepsTheQuorum refuses a leave after which fewer servers than min_quorum would vote.
func TestLeaveKeepsTheQuorum(t *testing.T) {
	t.Parallel()
	pilot := claim.DefaultAutopilot()
	pilot.MinQuorum, pilot.ServerStabilizationTime = 3, 300*time.Millisecond
	c := clustertest.Form(t, 3, clustertest.Options{Autopilot: &pilot})
	c.WaitVoters(t, names(c.Hosts())...)
	h := c.Follower(t)
	if err := h.Leave(within(t), h.Discovery.Leave); !errors.Is(err, cluster.ErrQuorum) {
		t.Errorf("it may leave: %v", err)
	}
	if m, _ := h.Discovery.Member(h.Name); m.Status != discovery.Alive {
		t.Errorf("it has left all the same: %+v", m)
	}
	c.Add(t, "server-4", 3).Start(t)
	c.WaitReady(t)
	c.WaitVoters(t, names(c.Hosts())...)
	leaves(t, h)
	h.Stop(t)
	c.WaitVoters(t, names(c.Up())...)
}
