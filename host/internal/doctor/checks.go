package doctor

import "context"

// check looks at one thing.
type check struct {
	name string
	look func(p *Patient, ctx context.Context) []Finding
}

// checks in the order in which one depends on those before it.
var checks = []check{
	// The machine.
	{"mount propagation", (*Patient).propagation},
	{"mount namespace", (*Patient).namespace},
	{"loop devices", (*Patient).loopDevices},
	{"orphan loop devices", (*Patient).orphanLoops},
	{"file system tools", (*Patient).tools},
	{"control groups", (*Patient).controlGroups},
	{"disk", (*Patient).disk},
	{"limits", (*Patient).limits},
	{"security module", (*Patient).securityModule},
	{"clock", (*Patient).clock},
	{"hung mounts", (*Patient).hungMounts},
	{"fstab", (*Patient).fstab},
	{"Docker", (*Patient).docker},
	// What is configured.
	{"configuration", (*Patient).configuration},
	{"certificates", (*Patient).certificates},
	{"Consul", (*Patient).consul},
	{"Consul's ACLs", (*Patient).consulACLs},
	// The agent.
	{"agent", (*Patient).agent},
	{"plugins", (*Patient).plugins},
	{"drivers", (*Patient).drivers},
	{"journal and mounts", (*Patient).leftovers},
	{"binds of volumes", (*Patient).binds},
	{"releases", (*Patient).releases},
	{"peers", (*Patient).peers},
	{"quorum", (*Patient).quorum},
	{"gossip keys", (*Patient).gossipKeys},
	{"secrets keys", (*Patient).secretsKeys},
}
