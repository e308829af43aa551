package main

const crashPkg = "./test/suite/crash"

// crashes are planted bugs that show only if an agent is killed at the wrong instant.
var crashes = []mutant{
	{
		name: "intent-not-in-journal", promise: "after kill -9 at any instant the restart ends in the same state",
		file: "host/internal/workload/run.go",
		old:  "		if err := r.mark(a, of, step.Intended); err != nil {\n			return err\n		}\n",
		new:  "		r.Update(func() { of.progress[a.name] = step.Intended })\n",
		pkg:  crashPkg, run: "^TestMatrix$/^local$/^reboot$/^claim:called$", args: []string{"-full"},
	},
	{
		name: "users-not-in-journal", promise: "users of a staging mount are known after a restart",
		file: "host/internal/workload/volumesteps/record.go",
		old:  "		u.Unanswered = note\n	}\n	return u, s.saveUsers(b, key, u)\n",
		new:  "		u.Unanswered = note\n	}\n	return u, nil\n",
		pkg:  workloadPkg, run: "^TestKilledInTheMiddleOfACall$/^stage$",
	},
	{
		name: "first-to-leave-unstages", promise: "a volume is unstaged after the last of its users, also across restarts",
		file: "host/internal/workload/volumesteps/stage.go",
		old:  "	if slices.Equal(u.Users, []string{v.user()}) {\n",
		new:  "	if slices.Contains(u.Users, v.user()) {\n",
		pkg:  crashPkg, run: "^TestMatrix$/^local$/^chance$", seeds: 2,
	},
}
