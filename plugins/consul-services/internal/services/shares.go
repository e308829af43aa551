package services

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/consul/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/plugins/internal/consul"
	"github.com/pannier/pannier/sdk/registration"
)

// The entry of a service's intentions belongs to all instances of the service together, on whichever hosts. Its Meta
// has who they are and what each asks for, so that an entry and the right to remove it change in one write: an
// instance that begins while another one ends is never left without its intentions. What nobody has written here is
// never changed: an entry without this Meta, and in ours the sources that others have added or changed.
//
// Meta has at most 64 keys of 512 bytes. Holders are hashes, and those that ask for the same sources are in one group:
// there is room for about 2,000.

// shares are the sources that the holders ask for.
type shares map[string][]string

// The lengths of the two parts of a holder. An owner's must be unique in one Consul, an instance's for one owner.
const (
	ownerMarkLen    = 8
	instanceMarkLen = 6
)

// holder identifies an instance in an entry.
func holder(owner registration.Owner, id string) string {
	return ownerMark(owner) + hashed(id)[:instanceMarkLen]
}

func ownerMark(owner registration.Owner) string {
	return hashed(owner.Cluster, owner.Node)[:ownerMarkLen]
}

func hashed(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// anybody is the source for all services.
const anybody = "*"

// sources are what the shares allow together, and what is denied to all others.
func (s shares) sources() map[string]api.IntentionAction {
	out := map[string]api.IntentionAction{}
	for _, names := range s {
		for _, name := range names {
			out[name] = api.IntentionActionAllow
		}
	}
	if len(s) > 0 && out[anybody] == "" {
		out[anybody] = api.IntentionActionDeny
	}
	return out
}

// The keys of an entry's Meta are markSource, sharesKey with 00, 01 and so on, and those of others.
const (
	sharesKey    = "pannier-intentions-"
	maxChunks    = 60
	maxMetaValue = 512
)

func chunkKey(n int) string { return fmt.Sprintf("%s%02d", sharesKey, n) }

// pack writes shares into Meta, in place of the ones that it has.
func (s shares) pack(meta map[string]string) (map[string]string, error) {
	out := map[string]string{}
	for key, value := range meta {
		if key != markSource && !strings.HasPrefix(key, sharesKey) {
			out[key] = value
		}
	}
	if len(s) == 0 {
		return out, nil
	}
	groups := map[string][]string{}
	for holder, names := range s {
		text := strings.Join(slices.Sorted(slices.Values(names)), ",")
		groups[text] = append(groups[text], holder)
	}
	var lines []string
	for _, text := range slices.Sorted(maps.Keys(groups)) {
		lines = append(lines, text+":"+strings.Join(slices.Sorted(slices.Values(groups[text])), ","))
	}
	text := strings.Join(lines, ";")
	out[markSource] = "pannier"
	for n := 0; text != ""; n++ {
		if n == maxChunks {
			return nil, status.Errorf(codes.FailedPrecondition, "%d workloads have the service with intentions, for which "+
				"Consul's entry has no room", len(s))
		}
		end := min(maxMetaValue, len(text))
		out[chunkKey(n)], text = text[:end], text[end:]
	}
	return out, nil
}

// unpackShares reads the shares in an entry's Meta. ok is false if the entry is not Pannier's.
func unpackShares(meta map[string]string) (s shares, ok bool) {
	var text strings.Builder
	for n := range maxChunks {
		text.WriteString(meta[chunkKey(n)])
	}
	if meta[markSource] != "pannier" || text.Len() == 0 {
		return nil, false
	}
	s = shares{}
	for group := range strings.SplitSeq(text.String(), ";") {
		names, holders, cut := strings.Cut(group, ":")
		if !cut {
			return nil, false
		}
		for h := range strings.SplitSeq(holders, ",") {
			s[h] = strings.Split(names, ",")
		}
	}
	return s, true
}

// intentionsPlan is what has to be done to an entry.
type intentionsPlan struct {
	write   *api.ServiceIntentionsConfigEntry // its ModifyIndex is that of the entry before, 0: none
	remove  bool
	changed []string // the sources that somebody else has changed
}

// planIntentions plans to give a holder its sources in the entry of a service, or none.
func planIntentions(name string, have *api.ServiceIntentionsConfigEntry, holder string, sources []string) (
	p intentionsPlan, err error,
) {
	var before shares
	want := api.ServiceIntentionsConfigEntry{Kind: api.ServiceIntentions, Name: name}
	if have != nil {
		var ok bool
		before, ok = unpackShares(have.Meta)
		switch {
		case !ok && len(sources) > 0:
			return p, foreignIntentions(name)
		case !ok:
			return p, nil
		}
		want = *have
	}
	after := maps.Clone(before)
	if delete(after, holder); len(sources) > 0 {
		if after == nil {
			after = shares{}
		}
		after[holder] = sources
	}
	if want.Meta, err = after.pack(want.Meta); err != nil {
		return p, err
	}
	differs := !maps.Equal(want.Meta, metaOf(have))
	ours, target := before.sources(), after.sources()
	missing := maps.Clone(target)
	want.Sources = nil
	for _, src := range sourcesOf(have) {
		action, wanted := target[src.Name]
		switch {
		case !sameName(have, src):
		case plain(src) && src.Action == ours[src.Name] && src.Action != action: // not needed any more
			differs = true
			continue
		case wanted:
			if src.Action != action || !plain(src) {
				p.changed = append(p.changed, fmt.Sprintf("%q", src.Name))
			}
			delete(missing, src.Name)
		}
		want.Sources = append(want.Sources, src)
	}
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		differs = true
		want.Sources = append(want.Sources,
			&api.SourceIntention{Name: name, Action: missing[name], Type: api.IntentionSourceConsul})
	}
	switch {
	case !differs:
	case len(want.Sources) == 0:
		p.remove = have != nil
	default:
		p.write = &want
	}
	return p, nil
}

func metaOf(e *api.ServiceIntentionsConfigEntry) map[string]string {
	if e == nil {
		return nil
	}
	return e.Meta
}

func sourcesOf(e *api.ServiceIntentionsConfigEntry) []*api.SourceIntention {
	if e == nil {
		return nil
	}
	return consul.Present(e.Sources)
}

// sameName reports whether a source of an entry is a service beside the entry's, as all of ours are. A service of the
// same name in another namespace, partition or peer is somebody else's.
func sameName(e *api.ServiceIntentionsConfigEntry, src *api.SourceIntention) bool {
	return src.Peer == "" && src.SamenessGroup == "" && cmp.Or(src.Namespace, e.Namespace) == e.Namespace &&
		cmp.Or(src.Partition, e.Partition) == e.Partition
}

// plain reports whether a source has nothing but a name and an action, as all of ours.
func plain(src *api.SourceIntention) bool { return len(src.Permissions) == 0 && src.Description == "" }
