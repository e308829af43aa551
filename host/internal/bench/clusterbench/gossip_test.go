package clusterbench

import (
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"os"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/hashicorp/serf/serf"

	"github.com/pannier/pannier/test/bench/measure"
	"github.com/pannier/pannier/test/bench/table"
	"github.com/pannier/pannier/test/lib/usage"
)

// few is the number of members, unless the run is a full one: the messages grow with its square.
const few = 300

// quiet is for how long the CPU time is measured once all know one another.
const quiet = 10 * time.Second

// measureGossip lets members join as the nodes of measureNodes do, without servers: memberlist and serf with nothing
// else, encrypted and with the same timings, and this program's.
func measureGossip(b *testing.B, r *table.Section) {
	number := few
	if measure.Full() {
		number = nodes
	}
	first := ""
	kinds := []struct {
		name string
		join func(n int) (member, error)
	}{
		{"memberlist alone", func(n int) (member, error) { return joinMemberlist(n, &first) }},
		{"serf alone", func(n int) (member, error) { return joinSerf(n, &first) }},
		{"Pannier", func(n int) (member, error) {
			d, err := discover(n, first)
			if err == nil && n == 0 {
				first = d.Addr()
			}
			return d, err
		}},
	}
	var joined [3]table.Row
	for i, kind := range kinds {
		first = "127.0.0.1:1" // the first has nobody to join
		used, began := usage.CPU(b, os.Getpid()), time.Now()
		all, _, ok := gather(b, number, 0, kind.join)
		joined[i] = table.Row{
			What:  fmt.Sprintf("%s: CPU time until each of %d members knows all others but one, on average", kind.name, number),
			Value: (usage.CPU(b, os.Getpid()) - used).Seconds(), Unit: "s", Unfinished: !ok,
		}
		r.Add(
			joined[i],
			table.Row{
				What:  fmt.Sprintf("%s: that many know one another after", kind.name),
				Value: time.Since(began).Seconds(), Unit: "s", Unfinished: !ok,
			},
		)
		if ok {
			used, began = usage.CPU(b, os.Getpid()), time.Now()
			time.Sleep(quiet)
			idle := 100 * (usage.CPU(b, os.Getpid()) - used).Seconds() / time.Since(began).Seconds()
			r.Add(table.Row{What: fmt.Sprintf("%s: CPU of all of them after that, of one core", kind.name), Value: idle, Unit: "%"})
		}
		all.close()
	}
	r.Add(table.Over("Pannier's CPU time until then, over serf's", joined[2], joined[1]))
}

// secret is gossipKey as memberlist takes it.
func secret() ([]byte, error) { return base64.StdEncoding.DecodeString(gossipKey) }

// bare are the settings of discovery, without its additions.
func bare(n int) (*memberlist.Config, error) {
	c := patient()
	key, err := secret()
	c.Name, c.BindAddr, c.BindPort, c.AdvertisePort = nodeName(n), "127.0.0.1", 0, 0
	c.SecretKey, c.EnableCompression = key, false
	c.Logger = log.New(io.Discard, "", 0)
	return c, err
}

// retry repeats a join, which times out on a busy machine.
func retry(join func() error) error {
	for late := time.Now().Add(patience); ; {
		err := join()
		if err == nil || time.Now().After(late) {
			return err
		}
	}
}

type memberlistAlone struct{ *memberlist.Memberlist }

// Alive returns how many members are alive.
func (m memberlistAlone) Alive() int { return m.NumMembers() }

// Close ends the member's gossip.
func (m memberlistAlone) Close() error { return m.Shutdown() }

func joinMemberlist(n int, first *string) (member, error) {
	c, err := bare(n)
	if err != nil {
		return nil, err
	}
	m, err := memberlist.Create(c)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		*first = m.LocalNode().Address()
		return memberlistAlone{m}, nil
	}
	return memberlistAlone{m}, retry(func() error { _, err := m.Join([]string{*first}); return err })
}

type serfAlone struct{ *serf.Serf }

// Alive returns how many members are alive.
func (s serfAlone) Alive() int { return s.Memberlist().NumMembers() }

// Close ends the member's gossip.
func (s serfAlone) Close() error { return s.Shutdown() }

func joinSerf(n int, first *string) (member, error) {
	ml, err := bare(n)
	if err != nil {
		return nil, err
	}
	c := serf.DefaultConfig()
	c.NodeName, c.MemberlistConfig, c.Logger = ml.Name, ml, ml.Logger
	c.Tags = map[string]string{"role": "node", "id": ml.Name, "dc": "dc1", "rpc": "", "version": "benchmark", "machine": ""}
	c.DisableCoordinates, c.EnableNameConflictResolution = true, false
	s, err := serf.Create(c)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		*first = s.Memberlist().LocalNode().Address()
		return serfAlone{s}, nil
	}
	return serfAlone{s}, retry(func() error { _, err := s.Join([]string{*first}, true); return err })
}
