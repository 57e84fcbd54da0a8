"""Identity testing over finite fields: an opinion on equality that owes nothing to rules."""
