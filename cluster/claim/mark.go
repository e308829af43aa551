package claim

import (
	"cmp"
	"fmt"
	"time"
)

// Act is something slow that nobody may have a volume, or any volume, during.
type Act string

// The acts. Deleting and Expanding concern a volume, Restoring the whole ledger.
const (
	Deleting  Act = "deleting"
	Expanding Act = "expanding"
	Restoring Act = "restoring"
)

// acts describes the acts, for refusals.
var acts = map[Act]struct{ going, conflict string }{
	Deleting:  {"is being deleted at its driver", "cannot be deleted while claims stand"},
	Expanding: {"is being expanded by its driver", "can be expanded by its driver only while nobody uses it"},
	Restoring: {"cannot be claimed while a snapshot replaces the ledger", "is claimed: a snapshot may not know of that, and " +
		"let others write to the same volume; stop the workloads first, as with: pannier node drain -enable NODE"},
}

// Mark is set while an act is under way. The command that checks that nobody has the volume sets it, and no claim is
// granted while it stands. It ends with the act. If the act's caller has gone, or its driver did not answer, the leader
// repeats the act, since drivers accept that: only the driver knows whether it is done.
type Mark struct {
	Act   Act       `json:"act"`
	By    string    `json:"by,omitempty"`
	Since time.Time `json:"since,omitzero"`
	// Call is the key of the caller's call. An agent that finishes the act does so in that call's name, so that another
	// attempt of the call learns of it.
	Call string `json:"call,omitempty"`
	// Index is the ledger index at which the mark was last taken. It identifies the caller that may end it.
	Index uint64 `json:"index,omitempty"`
	// Term is raft's term of that entry. Only the leader of that term can restore a ledger.
	Term uint64 `json:"term,omitempty"`
	// Repeated is true if an earlier call of the act may still be under way, so that only the driver's success ends it.
	Repeated bool `json:"repeated,omitempty"`
	// CapacityMin and CapacityMax are the arguments of Expanding.
	CapacityMin int64 `json:"capacity_min,omitempty"`
	CapacityMax int64 `json:"capacity_max,omitempty"`
}

// Take returns the mark of an act at an index and a time. standing, if there is one, is taken over by the same act, and
// by Deleting, since then the driver's answer to the later call ends both. Otherwise ok is false.
func (m Mark) Take(standing *Mark, index uint64, at time.Time) (taken Mark, ok bool) {
	m.Index, m.Since = index, at
	if standing == nil {
		return m, true
	}
	if standing.Act != m.Act && m.Act != Deleting {
		return m, false
	}
	m.Repeated = true
	if standing.Act == m.Act {
		m.Since, m.By, m.Call = standing.Since, standing.By, cmp.Or(m.Call, standing.Call)
	}
	return m, true
}

// Refuse returns the refusal of what a mark excludes. The error is a *Refusal.
func (m *Mark) Refuse(volume VolumeRef, mode Mode, at time.Time) error {
	detail := acts[m.Act].going
	if m.By != "" {
		detail += ", by " + m.By
	}
	if detail += fmt.Sprintf(", since %s", age(m.Since, at)); m.Act == Deleting {
		detail += fmt.Sprintf(" (to finish that: pannier volume delete %s)", volume.ID)
	}
	return &Refusal{Reason: ErrMarked, Volume: volume, Mode: mode, Detail: detail, At: at}
}

// Conflict returns the refusal of an act on a volume that has claims. The error is a *Refusal.
func (a Act) Conflict(volume VolumeRef, held []Claim, at time.Time) error {
	return &Refusal{Reason: ErrVolumeInUse, Volume: volume, Detail: acts[a].conflict, Holders: held, At: at}
}

// Valid reports whether the act is one that a volume, or else the whole ledger, can be marked with.
func (a Act) Valid(ofVolume bool) bool { return acts[a].going != "" && (a != Restoring) == ofVolume }
