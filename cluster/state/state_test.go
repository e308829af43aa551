package state

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/lib/check"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ref(id string) claim.VolumeRef        { return claim.VolumeRef{Namespace: "default", ID: id} }
func workload(id string) claim.WorkloadRef { return claim.WorkloadRef{Namespace: "default", ID: id} }

func volume(id string, access ...claim.AccessMode) claim.Volume {
	v := claim.Volume{Definition: claim.Definition{VolumeRef: ref(id), Name: id, PluginID: "hostpath", ExternalID: "ext-" + id}}
	for _, a := range access {
		v.Capabilities = append(v.Capabilities, claim.Capability{AccessMode: a, AttachmentMode: claim.FileSystem})
	}
	return v
}

func wanted(id string, access claim.AccessMode, mode claim.Mode) claim.Claim {
	return claim.Claim{Volume: ref(id), Mode: mode, AccessMode: access, AttachmentMode: claim.FileSystem}
}

// ledger is a store with its own log.
type ledger struct {
	*Store
	t     fataler
	index uint64
}

type fataler interface {
	Helper()
	Errorf(string, ...any)
	Fatalf(string, ...any)
}

func open(t testing.TB) *ledger {
	t.Helper()
	return openIn(t, t.TempDir())
}

func openIn(t testing.TB, dir string) *ledger {
	t.Helper()
	s, err := Open(dir, nil)
	check.NoError(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return &ledger{Store: s, t: t, index: s.AppliedIndex()}
}

// do applies one command.
func (l *ledger) do(c command.Command) (any, error) {
	l.t.Helper()
	l.index++
	command.SetAt(c, now.Add(time.Duration(l.index)*time.Second))
	outcomes, err := l.Apply([]Entry{{Index: l.index, Command: c}})
	if err != nil {
		l.t.Fatalf("apply %T: %v", c, err)
	}
	return outcomes[0].Result, outcomes[0].Err
}

func (l *ledger) must(c command.Command) any {
	l.t.Helper()
	result, err := l.do(c)
	if err != nil {
		l.t.Fatalf("%T: %v", c, err)
	}
	return result
}

// refused applies a command that must be refused, for a reason.
func (l *ledger) refused(what string, reason error, c command.Command) {
	l.t.Helper()
	if _, err := l.do(c); !errors.Is(err, reason) {
		l.t.Errorf("%s: %v, want %v", what, err, reason)
	}
}

// dump returns every key of the ledger.
func (l *ledger) dump() map[string]string {
	l.t.Helper()
	all := map[string]string{}
	err := l.View(func(tx *ReadTx) error {
		return tx.scan(span{}, true, func(key string, value []byte) error {
			all[key] = string(value)
			return nil
		})
	})
	if err != nil {
		l.t.Fatalf("dump: %v", err)
	}
	return all
}

// records is dump without the keys that each entry changes.
func (l *ledger) records() map[string]string {
	all := l.dump()
	delete(all, string(appliedKey))
	return all
}

func (l *ledger) sameAs(want map[string]string, what string) {
	l.t.Helper()
	got := l.records()
	if maps.Equal(got, want) {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(got)) {
		if w, there := want[key]; !there || w != got[key] {
			l.t.Fatalf("%s: %q is %s, want %s", what, key, got[key], w)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if _, there := got[key]; !there {
			l.t.Fatalf("%s: %q is gone", what, key)
		}
	}
}

func TestClaimsAreAllOrNone(t *testing.T) {
	l := open(t)
	for _, id := range []string{"a", "b"} {
		l.must(&command.RegisterVolume{Volume: volume(id, claim.SingleNodeWriter)})
	}
	l.must(&command.StartWorkload{
		Ref: workload("first"), Node: "n1",
		Claims: []claim.Claim{wanted("b", claim.SingleNodeWriter, claim.Write)},
	})
	before := l.records()
	for name, claims := range map[string][]claim.Claim{
		"held": {
			wanted("a", claim.SingleNodeWriter, claim.Write),
			wanted("b", claim.SingleNodeWriter, claim.Write),
		},
		"not registered": {
			wanted("a", claim.SingleNodeWriter, claim.Write),
			wanted("c", claim.SingleNodeWriter, claim.Write),
		},
		"wanted twice": {
			wanted("a", claim.SingleNodeWriter, claim.Write),
			wanted("a", claim.SingleNodeWriter, claim.Write),
		},
	} {
		if _, err := l.do(&command.StartWorkload{Ref: workload("second"), Node: "n1", Claims: claims}); err == nil {
			t.Errorf("%s: not refused", name)
		}
		l.sameAs(before, name)
	}
}

func TestStartWorkloadAgain(t *testing.T) {
	l := open(t)
	for _, id := range []string{"a", "b"} {
		l.must(&command.RegisterVolume{Volume: volume(id, claim.SingleNodeWriter)})
	}
	start := func(node string, ids ...string) (command.StartWorkloadResult, error) {
		c := &command.StartWorkload{Ref: workload("w"), Node: node}
		for _, id := range ids {
			c.Claims = append(c.Claims, wanted(id, claim.SingleNodeWriter, claim.Write))
		}
		result, err := l.do(c)
		r, _ := result.(command.StartWorkloadResult)
		return r, err
	}
	first, err := start("n1", "a")
	if err != nil || !first.Created {
		t.Fatalf("%+v, %v", first, err)
	}
	before := l.records()
	again, err := start("n1", "a")
	if err != nil || again.Created || again.Claims[0] != first.Claims[0] ||
		!reflect.DeepEqual(again.Workload, first.Workload) {
		t.Errorf("the same start again: %+v, %v", again, err)
	}
	for name, args := range map[string][]string{
		"another node": {"n2", "a"}, "one more": {"n1", "a", "b"}, "none": {"n1"},
		"other": {"n1", "b"},
	} {
		if _, err := start(args[0], args[1:]...); !errors.Is(err, claim.ErrConflict) {
			t.Errorf("%s: %v, want ErrConflict", name, err)
		}
		l.sameAs(before, name)
	}
	l.must(&command.EndWorkload{Ref: workload("w")})
	if _, err := start("n2", "a"); !errors.Is(err, claim.ErrHeld) {
		t.Errorf("a new start while its old claim is released: %v, want ErrHeld", err)
	}
	if r, err := start("n2", "b"); err != nil || !r.Created {
		t.Errorf("a new start with another volume: %v", err)
	}
}

func TestFencing(t *testing.T) {
	l := open(t)
	l.must(&command.RegisterVolume{Volume: volume("a", claim.SingleNodeWriter)})
	take := func() uint64 {
		r := l.must(&command.StartWorkload{
			Ref: workload("w"), Node: "n",
			Claims: []claim.Claim{wanted("a", claim.SingleNodeWriter, claim.Write)},
		})
		return r.(command.StartWorkloadResult).Claims[0].Index
	}
	free := func(index uint64) command.Advanced {
		r := l.must(&command.AdvanceClaims{Items: []command.Advance{{
			Volume: ref("a"), Workload: workload("w"), Index: index,
			To: claim.Freed,
		}}})
		return r.(command.AdvanceClaimsResult).Items[0]
	}
	old := take()
	l.must(&command.EndWorkload{Ref: workload("w")})
	free(old)
	take()
	before := l.records()
	if a := free(old); !a.Gone {
		t.Errorf("freeing a claim twice: %+v", a)
	}
	l.sameAs(before, "a delayed free of the previous claim")
	if a := free(0); !a.Gone {
		t.Errorf("whichever stands: %+v", a)
	}
}

func TestAdvance(t *testing.T) {
	l := open(t)
	l.must(&command.RegisterVolume{Volume: volume("a", claim.SingleNodeWriter)})
	l.must(&command.StartWorkload{
		Ref: workload("w"), Node: "n",
		Claims: []claim.Claim{wanted("a", claim.SingleNodeWriter, claim.Write)},
	})
	item := func(to claim.State) command.Advance {
		return command.Advance{Volume: ref("a"), Workload: workload("w"), To: to}
	}
	r := l.must(&command.AdvanceClaims{By: "root", Items: []command.Advance{item(claim.NodeDetached)}})
	got := r.(command.AdvanceClaimsResult).Items[0].Claim
	if got.State != claim.NodeDetached || got.ForcedBy != "root" || got.ForcedAt.IsZero() || got.Mode != claim.Write {
		t.Errorf("forced to %+v", got)
	}
	before := l.records()
	l.refused("backwards", claim.ErrBackwards, &command.AdvanceClaims{Items: []command.Advance{item(claim.Unpublishing)}})
	l.must(&command.AdvanceClaims{Items: []command.Advance{item(claim.NodeDetached)}})
	for name, items := range map[string][]command.Advance{
		"the same twice": {item(claim.Freed), item(claim.Freed)},
		"no state":       {item("")},
		"a path":         {{Volume: ref("a/default"), Workload: workload("w"), To: claim.Freed}},
	} {
		if _, err := l.do(&command.AdvanceClaims{Items: items}); !errors.Is(err, claim.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	l.sameAs(before, "refused or repeated")
}

func TestDeregisterByForce(t *testing.T) {
	l := open(t)
	l.must(&command.RegisterVolume{Volume: volume("a", claim.MultiNodeMultiWriter)})
	empty := l.records()
	const holders = command.MaxItems + 10
	for i := range holders {
		l.must(&command.StartWorkload{
			Ref: workload(fmt.Sprint("w", i)), Node: "n",
			Claims: []claim.Claim{wanted("a", claim.MultiNodeMultiWriter, claim.Write)},
		})
	}
	l.refused("without force", claim.ErrVolumeInUse, &command.DeregisterVolume{Ref: ref("a")})
	first := l.must(&command.DeregisterVolume{Ref: ref("a"), Force: true}).(command.DeregisterVolumeResult)
	second := l.must(&command.DeregisterVolume{Ref: ref("a"), Force: true}).(command.DeregisterVolumeResult)
	if !first.More || second.More || len(first.LeftBehind) != command.MaxItems || len(second.LeftBehind) != 10 {
		t.Errorf("freed %d (more: %v) and %d (more: %v)", len(first.LeftBehind), first.More, len(second.LeftBehind),
			second.More)
	}
	for key := range l.records() {
		if _, volume := empty[key]; volume || key[:2] != workloads && key[:3] != workloadsByNode {
			t.Errorf("%q is left", key)
		}
	}
	l.refused("once more", claim.ErrVolumeNotFound, &command.DeregisterVolume{Ref: ref("a"), Force: true})
}

func TestOneVolumeIsRegisteredOnce(t *testing.T) {
	l := open(t)
	register := func(namespace, id, driver, external string) error {
		v := volume(id, claim.SingleNodeWriter)
		v.Namespace, v.PluginID, v.ExternalID = namespace, driver, external
		_, err := l.do(&command.RegisterVolume{Volume: v})
		return err
	}
	refused := func(err error, by string) {
		t.Helper()
		if !errors.Is(err, claim.ErrDuplicate) || !strings.Contains(err.Error(), by) {
			t.Errorf("got %v, want ErrDuplicate by %s", err, by)
		}
	}
	for _, v := range [][4]string{
		{"default", "a", "d", "disk/1"},
		{"default", "a", "d", "disk/1"}, // an update
		{"default", "b", "d", "disk"},
		{"default", "c", "other", "disk/1"},
	} {
		if err := register(v[0], v[1], v[2], v[3]); err != nil {
			t.Errorf("%v: %v", v, err)
		}
	}
	before := l.records()
	refused(register("default", "e", "d", "disk/1"), `"a"`)
	refused(register("shop", "a", "d", "disk/1"), `"a"`)
	refused(register("default", "b", "d", "disk/1"), `"a"`) // by an update
	l.sameAs(before, "refused")
	l.must(&command.DeregisterVolume{Ref: ref("a")})
	if err := register("default", "b", "d", "disk/1"); err != nil {
		t.Errorf("after the other was deregistered: %v", err)
	}
	if err := register("shop", "a", "d", "disk"); err != nil {
		t.Errorf("the id that an update gave up: %v", err)
	}
}

// An id that a driver reads as a path is one volume, however it is written.
func TestOneVolumeIsWrittenInManyWays(t *testing.T) {
	l := open(t)
	register := func(id, external string) error {
		v := volume(id, claim.SingleNodeWriter)
		v.ExternalID = external
		_, err := l.do(&command.RegisterVolume{Volume: v})
		return err
	}
	for i, id := range []string{"srv#exports/a#vol#u#", "nfs://srv/a/vol", "/subscriptions/x/disks/y", "aGk//w==", ".", "##", "/"} {
		if err := register(fmt.Sprint("v", i), id); err != nil {
			t.Errorf("%q: %v", id, err)
		}
		if err := register(fmt.Sprint("v", i), id); err != nil {
			t.Errorf("%q again: %v", id, err)
		}
	}
	for _, id := range []string{
		"srv#exports/a/#vol#u#", "srv#exports//a#vol#u#", "srv#./exports/a#./vol#u#", "nfs://srv//a/vol/", "nfs://srv/a/./vol",
		"/subscriptions/x//disks/y",
	} {
		if err := register("other", id); !errors.Is(err, claim.ErrDuplicate) {
			t.Errorf("%q: %v", id, err)
		}
	}
	for _, id := range []string{"srv#exports/b#../a/vol#u#", "srv:../a", "a/..", ".."} {
		if err := register("other", id); err == nil || !strings.Contains(err.Error(), "leads to the directory above") {
			t.Errorf("%q: %v", id, err)
		}
	}
	if err := register("other", "srv#exports/a#vol..2#u#"); err != nil {
		t.Error(err)
	}
}

// Drivers learn from reserved keys for which workload a call is, so that nobody can write them into a volume.
func TestVolumeThatPosesAsAWorkloads(t *testing.T) {
	l := open(t)
	before := l.records()
	for _, key := range []string{
		"csi.storage.k8s.io/ephemeral", "csi.storage.k8s.io/pod.namespace", "CSI.storage.k8s.io/serviceAccount.tokens",
		"csi.storage.k8s.io/pvc/namespace", "storage.kubernetes.io/csiProvisionerIdentity",
	} {
		written := map[string]string{"size": "1", key: "true"}
		for field, write := range map[string]func(*claim.Volume){
			"context":            func(v *claim.Volume) { v.Context = written },
			"parameters":         func(v *claim.Volume) { v.Parameters = written },
			"mutable_parameters": func(v *claim.Volume) { v.MutableParameters = written },
		} {
			v := volume("v", claim.SingleNodeWriter)
			write(&v)
			_, err := l.do(&command.RegisterVolume{Volume: v})
			if wrong := (*claim.FieldError)(nil); !errors.As(err, &wrong) || wrong.Field != field ||
				!strings.Contains(wrong.Problem, key) {
				t.Errorf("%s with %q: %v", field, key, err)
			}
		}
	}
	l.sameAs(before, "refused")
}

func TestANodeThatRepeatsItsDevicesWritesNothing(t *testing.T) {
	l := open(t)
	put := func(healthy int, memory string) bool {
		r := l.must(&command.PutNode{Node: claim.Node{Name: "n", Devices: []claim.NodeDevices{{
			Plugin: "p", Vendor: "v", Type: "gpu", Name: "T4", Total: 2, Healthy: healthy,
			Attributes: map[string]string{"memory": memory},
		}}}})
		return r.(command.PutNodeResult).Changed
	}
	for n, row := range []struct {
		healthy int
		memory  string
		changed bool
	}{{2, "16", true}, {2, "16", false}, {1, "16", true}, {1, "32", true}, {1, "32", false}} {
		if got := put(row.healthy, row.memory); got != row.changed {
			t.Errorf("%d: changed is %v", n, got)
		}
	}
	view(t, l, func(tx *ReadTx) error {
		n, err := tx.Node("n")
		if err == nil && (len(n.Devices) != 1 || n.Devices[0].Healthy != 1 || n.Devices[0].Attributes["memory"] != "32") {
			t.Errorf("%+v", n.Devices)
		}
		return err
	})
}

func TestCollection(t *testing.T) {
	l := open(t)
	driver := map[string]claim.NodeDriver{"hostpath": {ID: "hostpath", Type: claim.Monolith, Healthy: true}}
	l.must(&command.PutNode{Node: claim.Node{Name: "n", Drivers: driver}})
	l.must(&command.RegisterVolume{Volume: volume("a", claim.SingleNodeWriter)})
	collect := func() int {
		r := l.must(&command.DeleteDrivers{IDs: []string{"hostpath", "unknown"}, IfUnusedBefore: now.Add(time.Hour)})
		return len(r.(command.DeleteDriversResult).Deleted)
	}
	if collect() != 0 {
		t.Error("a driver in use by a node was deleted")
	}
	l.must(&command.DeleteNode{Name: "n"})
	if collect() != 0 {
		t.Error("a driver in use by a volume was deleted")
	}
	l.must(&command.StartWorkload{
		Ref: workload("w"), Node: "n",
		Claims: []claim.Claim{wanted("a", claim.SingleNodeWriter, claim.Write)},
	})
	l.must(&command.StartWorkload{Ref: workload("free"), Node: "n"})
	workloadsLeft := func(before time.Time) int {
		r := l.must(&command.DeleteWorkloads{EndedBefore: before})
		return len(r.(command.DeleteWorkloadsResult).Deleted)
	}
	if workloadsLeft(now.Add(time.Hour)) != 0 {
		t.Error("a running workload was deleted")
	}
	l.must(&command.EndWorkload{Ref: workload("w")})
	l.must(&command.EndWorkload{Ref: workload("free")})
	if workloadsLeft(now) != 0 {
		t.Error("a workload that ended after the limit was deleted")
	}
	if n := workloadsLeft(now.Add(time.Hour)); n != 1 {
		t.Errorf("%d workloads were deleted, not only the one without a claim", n)
	}
	l.must(&command.DeregisterVolume{Ref: ref("a"), Force: true})
	if workloadsLeft(now.Add(time.Hour)) != 1 || collect() != 1 {
		t.Error("an unused driver was not deleted")
	}
	if left := l.records(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestAppliedOnce(t *testing.T) {
	l := open(t)
	c := &command.RegisterVolume{Volume: volume("a", claim.SingleNodeWriter)}
	l.must(c)
	before := l.dump()
	outcomes, err := l.Apply([]Entry{{Index: l.index, Command: &command.DeregisterVolume{Ref: ref("a")}}})
	if err != nil || outcomes[0] != (Outcome{}) {
		t.Errorf("an entry that was already applied: %+v, %v", outcomes, err)
	}
	if !maps.Equal(before, l.dump()) {
		t.Error("an entry was applied twice")
	}
}

func TestBigBatches(t *testing.T) {
	l := open(t)
	var entries []Entry
	payload := string(bytes.Repeat([]byte("x"), 50<<10))
	for i := range 100 {
		v := volume(fmt.Sprint("v", i), claim.SingleNodeWriter)
		v.Context = map[string]string{"big": payload}
		entries = append(entries, Entry{Index: uint64(i + 1), Command: &command.RegisterVolume{Volume: v}})
	}
	outcomes, err := l.Apply(entries)
	check.NoError(t, err)
	for i, o := range outcomes {
		if o.Err != nil || o.Result.(command.RegisterVolumeResult).Volume.ID != fmt.Sprint("v", i) {
			t.Fatalf("entry %d: %+v", i, o)
		}
	}
	if l.AppliedIndex() != 100 {
		t.Errorf("applied %d", l.AppliedIndex())
	}
}

// TestBiggestCommands fills a transaction to its limit and adds the commands with the most writes, which must
// still fit.
func TestBiggestCommands(t *testing.T) {
	l := open(t)
	long := func(prefix string, i int) string {
		id := fmt.Sprintf("%s-%d-", prefix, i)
		return id + string(bytes.Repeat([]byte("x"), claim.MaxID-len(id)))
	}
	filler := volume("filler", claim.SingleNodeWriter)
	filler.Context = map[string]string{"big": string(bytes.Repeat([]byte("x"), batchBytes-2000))}
	onTop := func(c command.Command) {
		t.Helper()
		command.SetKey(c, long("key", int(l.index)))
		if entry, err := command.Encode(c); err != nil {
			t.Fatal(err)
		} else {
			t.Logf("%T has %d bytes of %d", c, len(entry), command.MaxSize)
		}
		command.SetAt(c, now)
		outcomes, err := l.Apply([]Entry{
			{Index: l.index + 1, Command: &command.RegisterVolume{Volume: filler}}, {Index: l.index + 2, Command: c},
		})
		if err != nil || outcomes[1].Err != nil {
			t.Fatalf("%T: %+v, %v", c, outcomes, err)
		}
		l.index += 2
	}

	ns := long("namespace", 0)
	advance := &command.AdvanceClaims{By: long("operator", 0)}
	start := &command.StartWorkload{Ref: claim.WorkloadRef{Namespace: ns, ID: long("w", 0)}, Node: long("node", 0)}
	gone := &command.DeleteTokens{}
	for i := range command.MaxItems {
		gone.IDs = append(gone.IDs, tokenID(i))
		if i < command.MaxTokens {
			start.Tokens = append(start.Tokens,
				claim.Token{ID: tokenID(i), Service: long("service", i), Consul: long("consul", i)})
		}
	}
	for i := range command.MaxClaims {
		v := volume(long("v", i), claim.SingleNodeSingleWriter)
		v.Namespace = ns
		l.must(&command.RegisterVolume{Volume: v})
		c := wanted("", claim.SingleNodeSingleWriter, claim.Write)
		c.Volume, c.DriverNodeID = v.VolumeRef, long("driver", i)+long("-", i)
		start.Claims = append(start.Claims, c)
		advance.Items = append(advance.Items,
			command.Advance{Volume: v.VolumeRef, Workload: start.Ref, To: claim.NodeDetached})
	}
	onTop(start)
	for i := command.MaxTokens; i < command.MaxItems; i++ {
		l.must(&command.PutToken{Token: claim.Token{
			ID: tokenID(i), Accessor: tokenID(i), Workload: start.Ref, Node: start.Node, Service: long("service",
				i), Consul: long("consul", i),
		}})
	}
	onTop(gone)
	onTop(&command.EndWorkload{Ref: start.Ref})
	onTop(advance)
	for i := range advance.Items {
		advance.Items[i].To = claim.Freed
	}
	onTop(advance)

	node := claim.Node{Name: long("node", 0), Drivers: map[string]claim.NodeDriver{}}
	for i := range claim.MaxDrivers {
		id := long("driver", i)
		node.Drivers[id] = claim.NodeDriver{
			ID: id, Type: claim.Monolith, Provider: long("p", i), Version: long("v", i),
			Message: string(bytes.Repeat([]byte("x"), command.MaxSize/claim.MaxDrivers-900)),
		}
	}
	onTop(&command.PutNode{Node: node})
	onTop(&command.DeleteNode{Name: node.Name})

	shared := volume(long("shared", 0), claim.MultiNodeMultiWriter)
	shared.Namespace = ns
	l.must(&command.RegisterVolume{Volume: shared})
	hold := func() {
		l.must(&command.PutNode{Node: claim.Node{Name: start.Node}})
		for i := range command.MaxItems {
			c := wanted("", claim.MultiNodeMultiWriter, claim.Write)
			c.Volume, c.DriverNodeID = shared.VolumeRef, long("driver", i)+long("-", i)
			one := &command.StartWorkload{
				Ref: claim.WorkloadRef{Namespace: ns, ID: long("holder", i)}, Node: start.Node,
				Claims: []claim.Claim{c},
			}
			await := &command.AwaitWorkload{Ref: one.Ref, Node: one.Node}
			for k := range command.MaxAfter {
				await.After = append(await.After, claim.WorkloadRef{Namespace: long("other", k), ID: long("other", k)})
			}
			if i == 0 {
				onTop(await)
			} else {
				l.must(await)
			}
			l.must(one)
		}
	}
	hold()
	onTop(&command.SetNodeStatus{Name: start.Node, Status: claim.NodeDown, By: long("operator", 0) + long("-", 0)})
	onTop(&command.SetNodeStatus{Name: start.Node, Status: claim.NodeDown, By: long("operator", 0) + long("-", 0)})
	onTop(&command.DeregisterVolume{Ref: shared.VolumeRef, Force: true})

	policies := &command.PutACLPolicies{}
	for i := range command.MaxPolicies {
		policies.Policies = append(policies.Policies, acl.Policy{Name: long("policy", i), Rules: long("", i)})
	}
	policies.Policies[0].Rules, policies.Policies[1].Rules = strings.Repeat("x", acl.MaxRules), strings.Repeat("x",
		acl.MaxRules)
	onTop(policies)
	deleted := &command.DeleteACLTokens{}
	for i := range command.MaxItems {
		token := acl.Token{
			Accessor: long("accessor", i), SecretHash: hashOf(i), Name: strings.Repeat("x", acl.MaxText),
			Type: acl.Client, ExpiresAt: now.AddDate(1, 0, 0),
		}
		for k := range acl.MaxNames {
			token.Policies = append(token.Policies, long("policy", k))
		}
		l.must(&command.PutACLTokens{Tokens: []acl.Token{token}})
		deleted.Accessors = append(deleted.Accessors, token.Accessor)
	}
	onTop(deleted)
}
