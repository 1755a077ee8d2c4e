"""The lab: published studies as executable recipes, and a ledger of what held.

Flow, one way: a recipe's parts write arrays (`runner`, `results`); claims are judged and figures
drawn from those arrays alone (`claims`, `judging`, `style`); `report` turns them into one HTML page. Nothing
outside this package imports it.
"""
