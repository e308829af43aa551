package doctor

import "context"

// check looks at one thing.
type check struct {
	name  string
	needs need
	look  func(p *Patient, ctx context.Context) []Finding
}

// need is what a check cannot be made without.
type need int

const (
	answering  need = 1 << iota // an agent that answers
	configured                  // the agent's configuration
	clustered                   // and other hosts in it
)

// checks in the order in which one depends on those before it.
var checks = []check{
	// The machine.
	{"mount propagation", 0, (*Patient).propagation},
	{"mount namespace", answering, (*Patient).namespace},
	{"loop devices", 0, (*Patient).loopDevices},
	{"orphan loop devices", 0, (*Patient).orphanLoops},
	{"file system tools", 0, (*Patient).tools},
	{"control groups", 0, (*Patient).controlGroups},
	{"disk", 0, (*Patient).disk},
	{"limits", 0, (*Patient).limits},
	{"security module", 0, (*Patient).securityModule},
	{"clock", 0, (*Patient).clock},
	{"hung mounts", 0, (*Patient).hungMounts},
	{"mount units", 0, (*Patient).mountUnits},
	{"Docker", 0, (*Patient).docker},
	// What is configured.
	{"configuration", 0, (*Patient).configuration},
	{"certificates", configured, (*Patient).certificates},
	{"Consul", configured, (*Patient).consul},
	{"Consul's ACLs", configured | answering, (*Patient).consulACLs},
	// The agent.
	{"agent", 0, (*Patient).agent},
	{"plugins", answering, (*Patient).plugins},
	{"drivers", answering, (*Patient).drivers},
	{"journal and mounts", answering, (*Patient).leftovers},
	{"services", answering, (*Patient).services},
	{"binds of volumes", answering, (*Patient).binds},
	{"releases", answering, (*Patient).releases},
	{"one cluster", answering, (*Patient).oneCluster},
	{"peers", answering | configured | clustered, (*Patient).peers},
	{"quorum", answering | configured | clustered, (*Patient).quorum},
	{"gossip keys", answering | configured | clustered, (*Patient).gossipKeys},
	{"secrets keys", answering, (*Patient).secretsKeys},
}
