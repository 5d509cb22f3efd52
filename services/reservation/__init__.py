"""Reservation: who may have which machines, when. The only owner of claims."""
