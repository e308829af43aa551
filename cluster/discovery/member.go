package discovery

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/hashicorp/serf/serf"
)

// Role is the role of an agent in the cluster.
type Role string

// The roles.
const (
	Server Role = "server" // has the ledger; is a node, too
	Node   Role = "node"
)

// Status is an agent's state according to gossip.
type Status string

// The statuses.
const (
	Alive   Status = "alive"
	Leaving Status = "leaving" // it has announced it, and still answers
	Left    Status = "left"    // it has announced it, or an operator has
	Failed  Status = "failed"  // it does not answer
)

// Self is the information that an agent announces about itself.
type Self struct {
	Name       string // unique in the cluster
	Role       Role
	Datacenter string
	RPC        string // the address of its RPC port, as others reach it: ip:port
	Version    string // of the program
	// Machine tells machines of one name apart: claim.Machine of the node's secret.
	Machine string
	// Cluster is the cluster's id; empty until this agent has learned it.
	Cluster string
}

// Member is one agent as gossip knows it.
type Member struct {
	Self
	Status Status
	// Gossip is the address of its serf port.
	Gossip string
}

// The tags by which serf transmits these fields.
const (
	tagRole    = "role"
	tagName    = "id"
	tagDC      = "dc"
	tagRPC     = "rpc"
	tagVer     = "version"
	tagMachine = "machine"
	tagCluster = "cluster"
)

func (s Self) tags() map[string]string {
	tags := map[string]string{
		tagRole: string(s.Role), tagName: s.Name, tagDC: s.Datacenter, tagRPC: s.RPC,
		tagVer: s.Version, tagMachine: s.Machine,
	}
	if s.Cluster != "" {
		tags[tagCluster] = s.Cluster
	}
	return tags
}

// validate applies serf's own rule for names (ValidateNodeNames), which compiles a regular expression for each
// message.
func validate(name string) error {
	odd := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '.'
	}
	if name == "" || len(name) > serf.MaxNodeNameLength || strings.ContainsFunc(name, odd) {
		return fmt.Errorf("the name %q is not made of 1 to %d letters, digits, dashes and dots", name, serf.MaxNodeNameLength)
	}
	return nil
}

// parse parses a member. It is an error if it is not an agent of this program, or if it announces another name
// than that under which it gossips.
func parse(m serf.Member) (Member, error) {
	if err := validate(m.Name); err != nil {
		return Member{}, fmt.Errorf("member at %s: %w", m.Addr, err)
	}
	role := Role(m.Tags[tagRole])
	if role != Server && role != Node {
		return Member{}, fmt.Errorf("member %q at %s says it is a %q, not a server or a node", m.Name, m.Addr, role)
	}
	if m.Tags[tagName] != m.Name {
		return Member{}, fmt.Errorf("member %q at %s calls itself %q", m.Name, m.Addr, m.Tags[tagName])
	}
	return Member{
		Self: Self{
			Name: m.Name, Role: role, Datacenter: m.Tags[tagDC], RPC: m.Tags[tagRPC],
			Version: m.Tags[tagVer], Machine: m.Tags[tagMachine], Cluster: m.Tags[tagCluster],
		},
		Status: status(m.Status),
		Gossip: net.JoinHostPort(m.Addr.String(), strconv.Itoa(int(m.Port))),
	}, nil
}

func status(s serf.MemberStatus) Status {
	switch s {
	case serf.StatusAlive:
		return Alive
	case serf.StatusLeaving:
		return Leaving
	case serf.StatusLeft:
		return Left
	default:
		return Failed
	}
}
