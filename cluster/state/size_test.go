package state

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

// TestCommandThatWritesTooMuch applies a command that writes the records of many nodes, and those are big. All of it
// does not fit into one of Badger's transactions, which must not stop the ledger; nothing of it is written.
func TestCommandThatWritesTooMuch(t *testing.T) {
	l := open(t)
	const many = 64
	items := make([]command.Advance, many)
	for i := range items {
		id := fmt.Sprint("n", i)
		l.must(&command.PutNode{Node: claim.Node{Name: id, Drivers: map[string]claim.NodeDriver{
			"hostpath": {ID: "hostpath", Type: claim.Monolith, Message: strings.Repeat("m", 16<<10)},
		}}})
		l.must(&command.RegisterVolume{Volume: volume(id, claim.SingleNodeWriter)})
		l.must(&command.StartWorkload{
			Ref: workload(id), Node: id, Claims: []claim.Claim{wanted(id, claim.SingleNodeWriter, claim.Write)},
		})
		items[i] = command.Advance{Volume: ref(id), Workload: workload(id), To: claim.NodeDetached}
	}
	before := l.records()
	for _, key := range []string{"", "once"} {
		c := &command.AdvanceClaims{Items: items, By: "op"}
		command.SetKey(c, key)
		l.refused("too many", command.ErrTooLarge, c)
		l.sameAs(before, "a command that writes too much")
	}
	l.must(&command.AdvanceClaims{Items: items[:many/4], By: "op"})
}
