// Package discovery lets agents find one another with serf: who is there, in which role,
// and at which address. It carries no claim and no promise: what it says may be late or
// wrong, and nothing that must be right depends on it.
//
// It knows nothing of raft and of the ledger.
package discovery

import (
	"context"
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

// Config is what an agent needs to be found and to find others.
type Config struct {
	Self Self
	// Bind and Port are listened on, TCP and UDP. 0: any free port.
	Bind string
	Port int
	// Advertise is the address at which others reach this agent; empty: Bind, or a
	// private address of this host where Bind is none.
	Advertise string
	// RetryJoin are addresses (host, or host:port) of others. Each is tried until it
	// has answered once, and all again while this agent is alone.
	RetryJoin []string
	// Key encrypts gossip: base64 of 16, 24 or 32 bytes. It makes the keyring; later the
	// keyring file says which keys there are. Empty, and no such file: gossip is in clear.
	Key string
	// KeyringFile keeps the keys (mode 0600), and SnapshotFile who was there last. Empty: they are
	// forgotten with the process.
	KeyringFile, SnapshotFile string
	// Memberlist has the timings of gossip; nil: those of a local net. Names,
	// addresses and keys in it are overwritten.
	Memberlist *memberlist.Config
	// Logger may be nil.
	Logger hclog.Logger
}

// How long others are remembered.
const (
	// reconnectFor is how long one that does not answer is tried again, and its address known: longer
	// than a host is away for a repair.
	reconnectFor = 28 * 24 * time.Hour
	// leftFor is how long one that has left is known as such.
	leftFor = 24 * time.Hour
	// movedAfter is how long one has to be taken for failed before another address of it is believed:
	// at once, which memberlist cannot be told by 0. Who answers there needs its certificate.
	movedAfter = time.Millisecond
	// dialTimeout bounds one attempt to reach an address.
	dialTimeout = 5 * time.Second
	// The pause between attempts to join grows from the first to the last.
	firstPause, lastPause = time.Second, 30 * time.Second
	// movedPause is the longest while others take this agent to be elsewhere. That goes on for good
	// where two agents have one name.
	movedPause = 4 * time.Second
)

// Discovery is this agent's part in the gossip.
type Discovery struct {
	serf *serf.Serf
	log  hclog.Logger

	mu      sync.Mutex
	self    Self
	changed notify.Broadcast
	odd     map[string]bool // members that were complained about
	told    map[string]bool // where others have said that this agent is, lately

	stop     context.CancelFunc
	unjoin   context.CancelFunc // ends keepJoined
	running  sync.WaitGroup
	closing  sync.Once
	closeErr error
}

// Open begins to listen, and to join in the background.
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
	// Serf waits for who takes its events, also while it opens.
	d.running.Go(func() { d.follow(ctx, events) })
	if d.serf, err = serf.Create(conf); err != nil {
		stop()
		d.running.Wait()
		return nil, fmt.Errorf("open serf on %s: %w (ports.serf and bind_addr say where it listens, TCP and UDP)", net.JoinHostPort(cfg.Bind, strconv.Itoa(cfg.Port)), err)
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
	// To compress a packet, of 1,400 bytes at most, memberlist fills a dictionary of 64 KiB. It
	// reads what others have compressed.
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
	conf.RejoinAfterLeave = true // one that is started again wants to be in again
	conf.ReconnectTimeout, conf.TombstoneTimeout = reconnectFor, leftFor
	conf.DisableCoordinates = true
	// Of two agents with one name, raft's certificates know the right one; votes of
	// gossip must not end it.
	conf.EnableNameConflictResolution = false
	return conf, events, nil
}

// merge keeps out who is none of this cluster, and hears where others believe this agent to be.
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
			return fmt.Errorf("member %q at %s is in the datacenter %q, not in %q", parsed.Name, parsed.Gossip, parsed.Datacenter, m.self.Datacenter)
		}
		if parsed.Name == m.self.Name {
			m.heardOf(parsed.Gossip)
		}
	}
	return nil
}

// follow tells of each change of a member.
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

// Changed gives a channel that is closed by the next change of a member. Get the channel,
// then read, then wait for it: so no change is missed.
func (d *Discovery) Changed() <-chan struct{} {
	return d.changed.Wait()
}

// Members are all agents that gossip knows, this one included, by name; those that
// have failed or left, too.
func (d *Discovery) Members() []Member {
	return d.members(func(serf.Member) bool { return true })
}

// Servers are the members that are servers, by name. Who needs no others asks for these: to read
// what each of 1,000 nodes says of itself takes milliseconds.
func (d *Discovery) Servers() []Member {
	return d.members(func(m serf.Member) bool { return m.Tags[tagRole] == string(Server) })
}

// Member is one agent by its name.
func (d *Discovery) Member(name string) (Member, bool) {
	named := d.members(func(m serf.Member) bool { return m.Name == name })
	if len(named) == 0 {
		return Member{}, false
	}
	return named[0], true
}

// members reads those that are wanted.
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

// Alive is how many agents are known to be alive, this one included. It reads nothing of what
// they say of themselves.
func (d *Discovery) Alive() int { return d.serf.Memberlist().NumMembers() }

// complain logs once of each member that cannot be read.
func (d *Discovery) complain(name string, err error) {
	d.mu.Lock()
	before := d.odd[name]
	d.odd[name] = true
	d.mu.Unlock()
	if !before {
		d.log.Warn("a member is left out", "error", err)
	}
}

// Addr is where serf listens, as others are told: ip:port.
func (d *Discovery) Addr() string {
	m := d.serf.LocalMember()
	return net.JoinHostPort(m.Addr.String(), strconv.Itoa(int(m.Port)))
}

// Encrypted says whether gossip is.
func (d *Discovery) Encrypted() bool { return d.serf.EncryptionEnabled() }

// SetFormed tells the others that this server's cluster has been formed. Who does not hear it
// now hears it later.
func (d *Discovery) SetFormed() {
	d.mu.Lock()
	before := d.self.Formed
	d.self.Formed = true
	tags := d.self.tags()
	d.mu.Unlock()
	if before {
		return
	}
	if err := d.serf.SetTags(tags); err != nil {
		d.log.Debug("nobody has confirmed yet that this server's cluster is formed", "error", err)
	}
}

// Join asks agents at addresses for the others, now, and returns how many answered. An
// error where not all did.
func (d *Discovery) Join(addresses ...string) (int, error) {
	n, err := d.serf.Join(addresses, true)
	if err != nil {
		return n, fmt.Errorf("join %s: %w", strings.Join(addresses, ", "), err)
	}
	return n, nil
}

// ErrNoMember says that gossip knows no such agent.
var ErrNoMember = errcode.NotFound.New("no such member")

// ForceLeave makes all others take a failed member for one that has left; with prune it is
// forgotten at once. One that is alive comes back by itself.
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

// Leave tells the others that this agent goes, and waits until they know. Close comes
// after it.
func (d *Discovery) Leave() error {
	d.unjoin() // serf joins nobody any more
	if err := d.serf.Leave(); err != nil {
		return fmt.Errorf("leave: %w", err)
	}
	return nil
}

// Close ends the gossip; without Leave the others take this agent for failed. It may be called again.
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
