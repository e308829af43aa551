package cluster

// Term is raft's term in which this node leads, so that others can tell it from leaders
// before and after it; 0: it does not lead.
func (n *Node) Term() uint64 { return n.leadership.since() }
