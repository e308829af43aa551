// Package discovery lets agents find one another with serf: which agents there are, in which role, and at which
// address. What it reports may be late or wrong, and nothing that must be right depends on it. It knows nothing of
// raft or the ledger.
package discovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/memberlist"
	"github.com/hashicorp/serf/serf"

	"github.com/pannier/pannier/internal/errcode"
	"github.com/pannier/pannier/internal/notify"
)

// Config configures an agent's discovery.
type Config struct {
	Self Self
	// Bind and Port are the TCP and UDP address to listen on. Port 0: any free port.
	Bind string
	Port int
	// Advertise is the address at which others reach this agent; empty: Bind or, if Bind is unspecified, a private
	// address of this host.
	Advertise string
	// RetryJoin are addresses (host, or host:port) of other agents. Each is tried until it has answered once, and
	// all are tried again while this agent is alone.
	RetryJoin []string
	// Key encrypts gossip: base64 of 16, 24 or 32 bytes. It makes the first keyring; later the keyring file has
	// the keys. If empty, and without such a file, gossip is not encrypted.
	Key string
	// KeyringFile keeps the keys (mode 0600), and SnapshotFile the last known members. Empty: they are lost with
	// the process.
	KeyringFile, SnapshotFile string
	// Memberlist has the timings of gossip; nil: the timings for a local network. Names, addresses and keys in it are
	// overwritten.
	Memberlist *memberlist.Config
	// Logger may be nil.
	Logger hclog.Logger
}

// How long other agents are remembered, and how joining is paced.
const (
	// reconnectFor is how long a failed agent is tried again, and its address known: longer than a host is away
	// for repair.
	reconnectFor = 28 * 24 * time.Hour
	// leftFor is how long an agent that has left is remembered as such.
	leftFor = 24 * time.Hour
	// movedAfter is how long an agent must have failed before another address of it is believed: practically at
	// once (memberlist does not allow 0). The server at the new address needs the agent's certificate anyway.
	movedAfter = time.Millisecond
	// dialTimeout bounds one attempt to reach an address.
	dialTimeout = 5 * time.Second
	// The pause between attempts to join grows from the first to the last.
	firstPause, lastPause = time.Second, 30 * time.Second
	// movedPause bounds the pause while others believe this agent to be at another address. That never ends if two
	// agents have the same name.
	movedPause = 4 * time.Second
)

// Discovery is this agent's part in gossip.
type Discovery struct {
	serf *serf.Serf
	log  hclog.Logger

	announcing sync.Mutex // held while self changes and is sent
	self       Self

	mu      sync.Mutex
	changed notify.Broadcast
	odd     map[string]bool  // members that were logged as unparsable
	told    map[string]bool  // addresses at which others lately believed this agent to be
	heard   notify.Broadcast // told has changed

	stop     context.CancelFunc
	unjoin   context.CancelFunc // ends keepJoined
	running  sync.WaitGroup
	closing  sync.Once
	closeErr error
}

// Open begins to listen, and joins others in the background.
func Open(cfg Config) (*Discovery, error) {
	log := cfg.Logger
	if log == nil {
		log = hclog.NewNullLogger()
	}
	conf, events, err := config(cfg, log)
	if err != nil {
		return nil, fmt.Errorf("open serf: %w", err)
	}
	before, err := lastSeen(cfg.SnapshotFile)
	if err != nil {
		return nil, fmt.Errorf("open serf: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	d := &Discovery{log: log, self: cfg.Self, odd: map[string]bool{}, told: map[string]bool{}, stop: stop}
	conf.Merge = merge{cfg.Self, d.heardOf}
	where := net.JoinHostPort(cfg.Bind, strconv.Itoa(cfg.Port))
	const how = "(ports.serf and bind_addr say where it listens, TCP and UDP)"
	transport, err := newTransport(conf.MemberlistConfig, log)
	if err != nil {
		stop()
		return nil, fmt.Errorf("open serf on %s: %w %s", where, err, how)
	}
	conf.MemberlistConfig.Transport = transport
	// Serf blocks until its events are received, also in Create.
	d.running.Go(func() { d.follow(ctx, events) })
	if d.serf, err = serf.Create(conf); err != nil {
		stop()
		d.running.Wait()
		return nil, fmt.Errorf("open serf on %s: %w %s", where, errors.Join(err, transport.Shutdown()), how)
	}
	joining, unjoin := context.WithCancel(ctx)
	d.unjoin = unjoin
	d.running.Go(func() { d.keepJoined(joining, cfg.RetryJoin, before) })
	return d, nil
}

func config(cfg Config, log hclog.Logger) (*serf.Config, <-chan serf.Event, error) {
	if err := validate(cfg.Self.Name); err != nil {
		return nil, nil, err
	}
	ring, err := keyring(cfg.KeyringFile, cfg.Key)
	if err != nil {
		return nil, nil, err
	}
	ml := memberlist.DefaultLANConfig()
	ml.TCPTimeout = dialTimeout
	if cfg.Memberlist != nil {
		copied := *cfg.Memberlist
		ml = &copied
	}
	ml.BindAddr, ml.BindPort = cfg.Bind, cfg.Port
	ml.AdvertiseAddr, ml.AdvertisePort = cfg.Advertise, cfg.Port
	ml.Keyring, ml.SecretKey = ring, nil
	ml.DeadNodeReclaimTime = movedAfter
	// Compression is off: for a packet of at most 1,400 bytes, memberlist fills a dictionary of 64 KiB.
	// Compressed packets of other members can be read nevertheless.
	ml.EnableCompression = false
	standard := log.StandardLogger(&hclog.StandardLoggerOptions{InferLevels: true})
	ml.Logger, ml.LogOutput = standard, nil

	events := make(chan serf.Event, 256)
	conf := serf.DefaultConfig()
	conf.NodeName = cfg.Self.Name
	conf.Tags = cfg.Self.tags()
	conf.EventCh = events
	conf.Logger, conf.LogOutput = standard, nil
	conf.MemberlistConfig = ml
	conf.KeyringFile = cfg.KeyringFile
	if ring == nil {
		conf.KeyringFile = ""
	}
	conf.SnapshotPath = cfg.SnapshotFile
	conf.RejoinAfterLeave = true // an agent that is started again rejoins
	conf.ReconnectTimeout, conf.TombstoneTimeout = reconnectFor, leftFor
	conf.DisableCoordinates = true
	// With two agents of one name, the certificates of the RPC port tell the right one; gossip must not shut one
	// down by vote.
	conf.EnableNameConflictResolution = false
	return conf, events, nil
}

// merge refuses agents that do not belong to this cluster, and records where others believe this agent to be.
type merge struct {
	self    Self
	heardOf func(address string)
}

func (m merge) NotifyMerge(members []*serf.Member) error {
	for _, other := range members {
		parsed, err := parse(*other)
		if err != nil {
			return err
		}
		if parsed.Datacenter != m.self.Datacenter {
			return fmt.Errorf("member %q at %s is in the datacenter %q, not in %q", parsed.Name, parsed.Gossip,
				parsed.Datacenter, m.self.Datacenter)
		}
		if parsed.Name == m.self.Name {
			m.heardOf(parsed.Gossip)
		}
	}
	return nil
}

// follow announces each change of a member.
func (d *Discovery) follow(ctx context.Context, events <-chan serf.Event) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-events:
			if _, ok := e.(serf.MemberEvent); ok {
				d.changed.Notify()
			}
		}
	}
}

// Changed returns a channel that is closed by the next change of a member. Get the channel, then read, then wait,
// so that no change is missed.
func (d *Discovery) Changed() <-chan struct{} {
	return d.changed.Wait()
}

// Members returns all agents that gossip knows, including this one and failed or departed ones, by name.
func (d *Discovery) Members() []Member {
	return d.members(func(serf.Member) bool { return true })
}

// Servers returns the members that are servers, by name. It is cheaper than Members: parsing the tags of 1,000
// nodes takes milliseconds.
func (d *Discovery) Servers() []Member {
	return d.members(func(m serf.Member) bool { return m.Tags[tagRole] == string(Server) })
}

// Member returns one agent by name.
func (d *Discovery) Member(name string) (Member, bool) {
	named := d.members(func(m serf.Member) bool { return m.Name == name })
	if len(named) == 0 {
		return Member{}, false
	}
	return named[0], true
}

// members returns the wanted members.
func (d *Discovery) members(wanted func(serf.Member) bool) (members []Member) {
	for _, m := range d.serf.Members() {
		if !wanted(m) {
			continue
		}
		member, err := parse(m)
		if err != nil {
			d.complain(m.Name, err)
			continue
		}
		members = append(members, member)
	}
	slices.SortFunc(members, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	return members
}

// Alive returns how many agents are known to be alive, including this one, without parsing their tags.
func (d *Discovery) Alive() int { return d.serf.Memberlist().NumMembers() }

// complain logs once for each member that cannot be parsed.
func (d *Discovery) complain(name string, err error) {
	d.mu.Lock()
	before := d.odd[name]
	d.odd[name] = true
	d.mu.Unlock()
	if !before {
		d.log.Warn("ignoring a member", "error", err)
	}
}

// Addr returns serf's address as others know it: ip:port.
func (d *Discovery) Addr() string {
	m := d.serf.LocalMember()
	return net.JoinHostPort(m.Addr.String(), strconv.Itoa(int(m.Port)))
}

// SetCluster announces the id of this agent's cluster.
func (d *Discovery) SetCluster(id string) {
	d.announce(func(s *Self) { s.Cluster = id })
}

// announce changes what this agent says about itself.
func (d *Discovery) announce(change func(*Self)) {
	d.announcing.Lock()
	defer d.announcing.Unlock()
	before := d.self
	change(&d.self)
	if d.self == before {
		return
	}
	if err := d.serf.SetTags(d.self.tags()); err != nil {
		d.log.Debug("no member has confirmed yet what this agent announces", "error", err)
	}
}

// Join contacts agents at addresses now, and returns how many answered. It is an error if not all did.
func (d *Discovery) Join(addresses ...string) (int, error) {
	n, err := d.serf.Join(addresses, true)
	if err != nil {
		return n, fmt.Errorf("join %s: %w", strings.Join(addresses, ", "), err)
	}
	return n, nil
}

// ErrNoMember means that gossip knows no such agent.
var ErrNoMember = errcode.NotFound.New("no such member")

// ForceLeave makes all others treat a failed member as one that has left; with prune it is forgotten at once. A
// member that is alive comes back by itself.
func (d *Discovery) ForceLeave(name string, prune bool) error {
	if _, ok := d.Member(name); !ok {
		return fmt.Errorf("force %q to leave: %w", name, ErrNoMember)
	}
	leave := d.serf.RemoveFailedNode
	if prune {
		leave = d.serf.RemoveFailedNodePrune
	}
	if err := leave(name); err != nil {
		return fmt.Errorf("force %q to leave: %w", name, err)
	}
	return nil
}

// Leave announces that this agent leaves, and waits until others have heard it. Close must still be called.
func (d *Discovery) Leave() error {
	d.unjoin() // serf must not join others any more
	if err := d.serf.Leave(); err != nil {
		return fmt.Errorf("leave: %w", err)
	}
	return nil
}

// Close ends gossip; without Leave the others will report this agent as failed. It may be called again.
func (d *Discovery) Close() error {
	d.closing.Do(func() {
		d.stop()
		if err := d.serf.Shutdown(); err != nil {
			d.closeErr = fmt.Errorf("close serf: %w", err)
		}
		d.running.Wait()
		d.changed.Notify()
	})
	return d.closeErr
}
