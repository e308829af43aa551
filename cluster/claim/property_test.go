package claim_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pannier/pannier/cluster/claim"
)

// TestNoSequenceBreaksTheModes takes, advances and frees claims in any order and checks after each step that the
// present claims are compatible.
func TestNoSequenceBreaksTheModes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := volume(claim.AccessModes...)
		var held []claim.Claim
		at := now
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				want := wanted(
					rapid.SampledFrom(claim.AccessModes).Draw(t, "access"),
					rapid.SampledFrom([]claim.Mode{claim.Read, claim.Write}).Draw(t, "mode"),
					rapid.SampledFrom([]string{"w1", "w2", "w3", "w4"}).Draw(t, "workload"),
					rapid.SampledFrom([]string{"a", "b"}).Draw(t, "node"),
				)
				if len(held) > 0 && rapid.Bool().Draw(t, "in the same mode") {
					want.AccessMode = held[0].AccessMode
				}
				at = at.Add(time.Second)
				granted, created, err := claim.Take(v, held, want, at)
				if err == nil && created {
					held = append(held, granted)
				}
			},
			"advance": func(t *rapid.T) {
				if len(held) == 0 {
					t.Skip("nothing is held")
				}
				i := rapid.IntRange(0, len(held)-1).Draw(t, "claim")
				to := rapid.SampledFrom(claim.States).Draw(t, "state")
				if !claim.CanAdvance(held[i].State, to) {
					return
				}
				if to == claim.Freed {
					held = append(held[:i:i], held[i+1:]...)
				} else {
					held[i].State = to
				}
			},
			"": func(t *rapid.T) {
				v.AccessMode, v.AttachmentMode = "", ""
				if len(held) > 0 {
					v.AccessMode, v.AttachmentMode = held[0].AccessMode, held[0].AttachmentMode
				}
				checkTogether(t, held)
			},
		})
	})
}

// checkTogether states the access modes independently of the rules, as invariants of the whole set of claims.
func checkTogether(t *rapid.T, held []claim.Claim) {
	writers, on, workloads := 0, map[string]bool{}, map[claim.WorkloadRef]bool{}
	for _, c := range held {
		if c.AccessMode != held[0].AccessMode || c.AttachmentMode != held[0].AttachmentMode {
			t.Fatalf("two modes at once: %+v", held)
		}
		if c.Mode == claim.Write {
			writers++
		}
		on[c.Node] = true
		if workloads[c.Workload] {
			t.Fatalf("workload %s has two claims", c.Workload)
		}
		workloads[c.Workload] = true
	}
	if len(held) == 0 {
		return
	}
	ok := true
	switch held[0].AccessMode {
	case claim.SingleNodeReaderOnly:
		ok = writers == 0 && len(on) == 1
	case claim.SingleNodeWriter, claim.SingleNodeSingleWriter:
		ok = len(held) == 1
	case claim.SingleNodeMultiWriter:
		ok = len(on) == 1
	case claim.MultiNodeReaderOnly:
		ok = writers == 0
	case claim.MultiNodeSingleWriter:
		ok = writers <= 1
	}
	if !ok {
		t.Fatalf("these claims are not compatible: %+v", held)
	}
}

// TestCountsOfDrivers replaces the reports of nodes in any order. The counts must match the present reports.
func TestCountsOfDrivers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var d claim.Driver
		says := map[string]*claim.NodeDriver{}
		for range rapid.IntRange(0, 30).Draw(t, "steps") {
			node := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "node")
			var next *claim.NodeDriver
			if rapid.Bool().Draw(t, "has it") {
				next = &claim.NodeDriver{
					Type: rapid.SampledFrom([]claim.DriverType{claim.NodeService, claim.ControllerService, claim.Monolith}).Draw(t,
						"type"),
					Healthy: rapid.Bool().Draw(t, "healthy"),
				}
				if next.Type == claim.Monolith && rapid.Bool().Draw(t, "controller apart") {
					next.ControllerApart = &claim.DriverHealth{Healthy: rapid.Bool().Draw(t, "healthy controller")}
				}
			}
			d.Replace(says[node], next)
			says[node] = next
		}
		var want claim.Driver
		for _, n := range says {
			if n == nil {
				continue
			}
			healthy := 0
			if n.Healthy {
				healthy = 1
			}
			if n.Type == claim.ControllerService || n.Type == claim.Monolith {
				want.ControllersExpected++
				if c := n.ControllerApart; c == nil && n.Healthy || c != nil && c.Healthy {
					want.ControllersHealthy++
				}
			}
			if n.Type == claim.NodeService || n.Type == claim.Monolith {
				want.NodesExpected++
				want.NodesHealthy += healthy
			}
		}
		if d.ControllersExpected != want.ControllersExpected || d.ControllersHealthy != want.ControllersHealthy ||
			d.NodesExpected != want.NodesExpected || d.NodesHealthy != want.NodesHealthy {
			t.Fatalf("counts are %+v, want %+v", d, want)
		}
	})
}
