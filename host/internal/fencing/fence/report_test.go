package fence

import (
	"testing"
	"time"

	"github.com/pannier/pannier/cluster/claim"
)

// TestReportIsOfTheRun: a report concerns a run that was started before the deadline, whatever the time of day was set
// to in between, and no later run and no other boot.
func TestReportIsOfTheRun(t *testing.T) {
	db := claim.WorkloadRef{Namespace: "default", ID: "db"}
	r := Report{
		BootID: "boot", Deadline: 100, Workloads: []claim.WorkloadRef{db},
		Began: time.Now().Add(-time.Hour), // the clock was set forward after the fence had acted
	}
	if !r.Hit(db, "boot", 99) {
		t.Error("a run from before the deadline")
	}
	if r.Hit(db, "boot", 101) || r.Hit(db, "earlier boot", 99) ||
		r.Hit(claim.WorkloadRef{Namespace: "default", ID: "other"}, "boot", 99) {
		t.Error("another run")
	}
}

func TestNewestReportsAreKept(t *testing.T) {
	dir := t.TempDir()
	for n := range maxReports + 2 {
		must(t, writeReport(dir, Report{BootID: "boot", Began: time.Unix(int64(n), 0)}))
	}
	all, err := Reports(dir)
	if err != nil || len(all) != maxReports || all[0].Began.Unix() != 2 || all[maxReports-1].Began.Unix() != maxReports+1 {
		t.Errorf("kept are %+v, %v", all, err)
	}
}
